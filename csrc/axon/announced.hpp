// A message that is about to be received. Its values and the descriptions of its tensors have arrived, but not its
// larger tensors. A function that gets it chooses the memory for them.
//
//   axon::Status added = runtime.add("frame", handler, [&](axon::Announced& coming) {
//     coming.receive_into(0, std::span<float>(frame));      // arguments().tensor(0) is this memory then
//   });
//
// It is valid until that function returns. Tensors without memory are placed in memory of the runtime.
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

/// The description of a tensor that is about to be received.
struct Incoming {
  DataType type = DataType::kByte;
  std::span<const int64_t> shape;
  size_t num_bytes = 0;
};

/// A message that is about to be received.
class Announced {
 public:
  explicit Announced(Destinations& destinations) noexcept : destinations_(destinations) {}

  /// @return a reader of the message's values, from the first one on
  rpc::ValueReader values() const noexcept;
  /// @return the number of tensors in the message
  size_t num_tensors() const noexcept;
  /// @param index which tensor, as a value of kind kTensor counts
  /// @return the description of the tensor; empty if there is none of this index
  Incoming tensor(size_t index) const noexcept;

  /// Receives a tensor into memory of the caller. Memory of another length, or that overlaps other memory, fails the
  /// call with kInvalidArgument, and at a caller in Python with ValueError.
  /// @param index which tensor
  /// @param memory as many bytes as the tensor has. It must stay valid as long as the received message, and if the call
  ///   fails until it is released.
  /// @param owner destroyed when the memory is no longer needed
  void receive_into(size_t index, std::span<std::byte> memory, Owner owner = {});
  /// The same, but also fails the call if the tensor has another element type.
  /// @param index which tensor
  /// @param elements as many elements as the tensor has
  /// @param owner destroyed when the memory is no longer needed
  template <Element T>
  void receive_into(size_t index, std::span<T> elements, Owner owner = {}) {
    if (is_of(index, data_type_of<T>())) receive_into(index, std::as_writable_bytes(elements), std::move(owner));
  }
  /// Fails the call for lack of memory: with kResourceExhausted, and at a caller in Python with BufferError.
  /// @param why the text of the error
  void refuse(std::string why);

 private:
  bool is_of(size_t index, DataType type);

  Destinations& destinations_;
};

/// A function that chooses memory, called once for each message with tensors by the thread that drives the engine. It
/// must not wait. An exception fails the call.
using Ask = std::function<void(Announced& coming)>;

}  // namespace axon::library
