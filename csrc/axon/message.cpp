#include "axon/message.hpp"

#include <cstring>
#include <utility>

#include "runtime/inbound.hpp"
#include "runtime/outbound.hpp"

namespace axon::library {

Message::Message(Outbound& outbound) noexcept : ValueWriter(outbound.bytes()), outbound_(outbound) {}

void Message::tensor(const TensorView& view, Owner owner) {
  const axon::TensorView sent{.dtype = static_cast<uint8_t>(view.type),
                              .shape = view.shape,
                              .data = {.data = view.data.data(), .num_bytes = view.data.size()}};
  ValueWriter::tensor(outbound_.add(sent, std::move(owner)));
}

ValueReader Received::values() const noexcept {
  return ValueReader(inbound_.values());
}

size_t Received::num_tensors() const noexcept {
  return inbound_.tensors().size();
}

Tensor Received::tensor(size_t index) const noexcept {
  if (index >= num_tensors()) return {};
  const Inbound::Tensor& tensor = inbound_.tensors()[index];
  return {.type = static_cast<DataType>(tensor.dtype),
          .shape = tensor.shape,
          .data = {tensor.data.data, tensor.data.num_bytes}};
}

Block Received::take(size_t index) noexcept {
  if (index >= num_tensors()) return {};
  Inbound::Tensor& tensor = inbound_.tensors()[index];
  if (tensor.place == TensorPlace::kPart) return std::move(tensor.block);
  Block copy = Block::take(tensor.data.num_bytes);
  if (copy) std::memcpy(copy.data(), tensor.data.data, tensor.data.num_bytes);
  return copy;
}

}  // namespace axon::library
