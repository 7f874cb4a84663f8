// What is sent, and what has come: plain values, with tensors among them.
//
//   message.array(2);  message.text("weights");  message.tensor(axon::TensorView::of(weights));
//
//   axon::ValueReader values = received.values();              // array(2), then its two values
//   if (values.next().kind != axon::Value::Kind::kArray) …
//   axon::Tensor weights = received.tensor(values.next().count);
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "base/data_type.hpp"
#include "memory/host_buffer.hpp"
#include "memory/owner.hpp"
#include "rpc/core/values.hpp"

namespace axon::rpc {
class Inbound;
class Outbound;
}  // namespace axon::rpc

namespace axon::library {

template <typename T>
concept Element = std::is_arithmetic_v<T> && sizeof(T) <= sizeof(int64_t);

template <Element T>
constexpr DataType data_type_of() noexcept {
  if constexpr (std::is_same_v<T, bool>) return DataType::kBool;
  if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? DataType::kFloat32 : DataType::kFloat64;
  constexpr auto smallest = static_cast<int>(std::is_signed_v<T> ? DataType::kInt8 : DataType::kUint8);
  constexpr int doublings = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  return static_cast<DataType>(smallest + 2 * doublings);
}

// To be sent: elements of host memory in a row, the last dimension's next to each other.
struct TensorView {
  DataType type = DataType::kByte;
  std::span<const int64_t> shape;
  std::span<const std::byte> data;
};

// Come: valid until its call is opened again, or its invocation is answered.
struct Tensor {
  DataType type = DataType::kByte;
  std::span<const int64_t> shape;
  std::span<std::byte> data;

  template <Element T>
  std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(data.data()), data.size() / sizeof(T)};
  }
};

// A message that is being written. A function of Python's takes array(2) of array(number of its arguments) with the
// arguments, and then nothing() or a map of named ones; its answer is one value.
class Message : public rpc::ValueWriter {
 public:
  explicit Message(rpc::Outbound& outbound) noexcept;

  // As the next value. Larger tensors (above 4 KiB) are not copied: their memory has to stay as it is until the message
  // has left, which the owner, if there is one, is destroyed after. Others may be gone once it is started or replied.
  // At most 4,096 of 64 dimensions.
  void tensor(const TensorView& view, Owner owner = {});
  // A row of numbers.
  template <Element T>
  void tensor(std::span<const T> elements, Owner owner = {}) {
    const auto length = static_cast<int64_t>(elements.size());
    tensor({.type = data_type_of<T>(), .shape = {&length, 1}, .data = std::as_bytes(elements)}, std::move(owner));
  }

 private:
  rpc::Outbound& outbound_;
};

// A message that has come.
class Received {
 public:
  explicit Received(rpc::Inbound& inbound) noexcept : inbound_(inbound) {}

  // From the first on.
  rpc::ValueReader values() const noexcept;
  // Of a call as Python makes it: from what stands in this place on, or under this name. Where there is none, all that
  // is read is kBroken.
  rpc::ValueReader argument(size_t index) const noexcept;
  rpc::ValueReader argument(std::string_view name) const noexcept;
  size_t num_tensors() const noexcept;
  // What a value of kind kTensor counts. Empty where there is none.
  Tensor tensor(size_t index) const noexcept;
  // Its memory, for as long as the buffer is kept: beyond the call, the peer and the runtime. Once; empty if there is
  // no memory for a copy, which small tensors need, or no such tensor. Not of what has come into memory of its
  // receiver's.
  HostBuffer take(size_t index) noexcept;
  // What such memory was given with, for as long as which it stays as it is. Once; empty where there is none. Of a call
  // that has failed only once it is released: until then something may still arrive there.
  Owner take_owner(size_t index) noexcept;

 private:
  friend class Mail;
  rpc::Inbound& inbound_;
};

}  // namespace axon::library
