// A message that is announced: its values are there, and what its tensors will be, but not the larger of those. Whoever
// is asked may say where they go.
//
//   axon::Status added = runtime.add("frame", handler, [&](axon::Announced& coming) {
//     coming.receive_into(0, std::span<float>(frame));      // which arguments().tensor(0) is then; the others: in
//     blocks
//   });
//
// Of use until the function that is asked returns.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "axon/message.hpp"
#include "base/data_type.hpp"
#include "memory/owner.hpp"
#include "rpc/core/values.hpp"

namespace axon::library {

class Destinations;

// What a tensor will be.
struct Incoming {
  DataType type = DataType::kByte;
  std::span<const int64_t> shape;
  size_t num_bytes = 0;
};

class Announced {
 public:
  explicit Announced(Destinations& destinations) noexcept : destinations_(destinations) {}

  // From the first on.
  rpc::ValueReader values() const noexcept;
  size_t num_tensors() const noexcept;
  // Empty where there is none.
  Incoming tensor(size_t index) const noexcept;

  // Memory as long as the tensor, apart from that of the others; anything else fails the call (kInvalidArgument, at a
  // caller of Python ValueError). It has to stay for as long as what comes out of it is valid, and that of a call that
  // fails until it is released; or give it an Owner, which is destroyed then.
  void receive_into(size_t index, std::span<std::byte> memory, Owner owner = {});
  // Of this type, too.
  template <Element T>
  void receive_into(size_t index, std::span<T> elements, Owner owner = {}) {
    if (is_of(index, data_type_of<T>())) receive_into(index, std::as_writable_bytes(elements), std::move(owner));
  }
  // There is no memory for it: fails the call (kResourceExhausted, BufferError).
  void refuse(std::string why);

 private:
  bool is_of(size_t index, DataType type);

  Destinations& destinations_;
};

// Called by whichever thread drives, once for each message with tensors; not to wait there. An exception fails the
// call.
using Ask = std::function<void(Announced& coming)>;

}  // namespace axon::library
