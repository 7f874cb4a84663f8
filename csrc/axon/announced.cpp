#include "axon/announced.hpp"

#include <utility>

#include "axon/destinations.hpp"

namespace axon::library {

rpc::ValueReader Announced::values() const noexcept {
  return rpc::ValueReader(destinations_.announced().values());
}

size_t Announced::num_tensors() const noexcept {
  return destinations_.announced().tensors().size();
}

Incoming Announced::tensor(size_t index) const noexcept {
  if (index >= num_tensors()) return {};
  const rpc::Inbound::Tensor& tensor = destinations_.announced().tensors()[index];
  return {.type = static_cast<DataType>(tensor.dtype), .shape = tensor.shape, .num_bytes = tensor.data.num_bytes};
}

void Announced::receive_into(size_t index, std::span<std::byte> memory, Owner owner) {
  destinations_.give(index, memory, std::move(owner));
}

void Announced::refuse(std::string why) {
  destinations_.fail(ErrorCode::kResourceExhausted, std::move(why));
}

bool Announced::is_of(size_t index, DataType type) {
  if (!destinations_.has(index)) return false;
  const DataType coming = tensor(index).type;
  if (coming == type) return true;
  destinations_.fail(ErrorCode::kInvalidArgument, "receive_into: tensor " + std::to_string(index) + " is given " +
                                                      name_of(type) + "; allowed: " + name_of(coming) +
                                                      ", the type of the received tensor");
  return false;
}

}  // namespace axon::library
