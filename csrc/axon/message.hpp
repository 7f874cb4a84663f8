// Messages to send and received messages: plain values, with tensors among them.
//
//   message.array(2);
//   message.text("weights");
//   message.tensor(axon::TensorView::of(weights));
//
//   axon::ValueReader values = received.values();  // array(2), then its two values
//   if (values.next().kind != axon::Value::Kind::kArray) return;
//   const axon::Value name = values.next();
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

/// An arithmetic type of up to 8 bytes.
template <typename T>
concept Element = std::is_arithmetic_v<T> && sizeof(T) <= sizeof(int64_t);

/// @return the element type of T
template <Element T>
constexpr DataType data_type_of() noexcept {
  if constexpr (std::is_same_v<T, bool>) return DataType::kBool;
  if constexpr (std::is_floating_point_v<T>) return sizeof(T) == 4 ? DataType::kFloat32 : DataType::kFloat64;
  constexpr auto smallest = static_cast<int>(std::is_signed_v<T> ? DataType::kInt8 : DataType::kUint8);
  constexpr int doublings = sizeof(T) == 1 ? 0 : sizeof(T) == 2 ? 1 : sizeof(T) == 4 ? 2 : 3;
  return static_cast<DataType>(smallest + 2 * doublings);
}

/// A tensor to send: contiguous elements in host memory, in row-major order.
struct TensorView {
  DataType type = DataType::kByte;
  std::span<const int64_t> shape;
  std::span<const std::byte> data;
};

/// A received tensor, valid until its call is opened again, or its invocation is answered.
struct Tensor {
  DataType type = DataType::kByte;
  std::span<const int64_t> shape;
  std::span<std::byte> data;

  /// @return the elements as values of type T, which must be the element type
  template <Element T>
  std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(data.data()), data.size() / sizeof(T)};
  }
};

/// A message that is being written. A function in Python takes array(2) of array(number of its arguments) with the
/// arguments, and then nothing() or a map of named arguments. Its answer is one value.
class Message : public rpc::ValueWriter {
 public:
  explicit Message(rpc::Outbound& outbound) noexcept;

  /// Writes a tensor as the next value. A message has at most 4,096 tensors of at most 64 dimensions. A tensor above
  /// 4 KiB is not copied: its memory must stay unchanged until the message has been sent. A smaller one is copied when
  /// the message is started or replied.
  /// @param view the tensor
  /// @param owner destroyed when the message has been sent
  void tensor(const TensorView& view, Owner owner = {});
  /// Writes a tensor `[n]` of numbers as the next value.
  /// @param elements the numbers
  /// @param owner destroyed when the message has been sent
  template <Element T>
  void tensor(std::span<const T> elements, Owner owner = {}) {
    const auto length = static_cast<int64_t>(elements.size());
    tensor({.type = data_type_of<T>(), .shape = {&length, 1}, .data = std::as_bytes(elements)}, std::move(owner));
  }

 private:
  rpc::Outbound& outbound_;
};

/// A received message.
class Received {
 public:
  explicit Received(rpc::Inbound& inbound) noexcept : inbound_(inbound) {}

  /// @return a reader of all values, from the first one on
  rpc::ValueReader values() const noexcept;
  /// Finds a positional argument of a call in Python's form.
  /// @param index its position
  /// @return a reader from the argument on; it reads only kBroken if there is none
  rpc::ValueReader argument(size_t index) const noexcept;
  /// Finds a named argument of a call in Python's form.
  /// @param name its name
  /// @return a reader from the argument on; it reads only kBroken if there is none
  rpc::ValueReader argument(std::string_view name) const noexcept;
  /// @return the number of tensors
  size_t num_tensors() const noexcept;
  /// @param index which tensor, as a value of kind kTensor counts
  /// @return the tensor; empty if there is none of this index
  Tensor tensor(size_t index) const noexcept;
  /// Takes the memory of a tensor, which stays valid as long as the result is kept: beyond the call, the peer and the
  /// runtime.
  /// @param index which tensor
  /// @return the memory, the first time. Empty for a tensor in memory of the receiver, or if there is no such tensor.
  ///   Also empty if there is no memory for the copy that a small tensor needs
  HostBuffer take(size_t index) noexcept;
  /// Takes the owner of the receiver's memory in which a tensor is. The memory stays unchanged as long as the owner is
  /// kept. For a failed call, take it only after the call is released: until then data may still arrive there.
  /// @param index which tensor
  /// @return the owner, the first time; otherwise empty
  Owner take_owner(size_t index) noexcept;

 private:
  rpc::Inbound& inbound_;
};

}  // namespace axon::library
