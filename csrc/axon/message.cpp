#include "axon/message.hpp"

#include <cstring>
#include <utility>

#include "rpc/core/inbound.hpp"
#include "rpc/core/outbound.hpp"

namespace axon::library {

Message::Message(rpc::Outbound& outbound) noexcept : ValueWriter(outbound.bytes()), outbound_(outbound) {}

void Message::tensor(const TensorView& view, Owner owner) {
  const axon::rpc::TensorView sent{.dtype = static_cast<uint8_t>(view.type),
                                   .shape = view.shape,
                                   .data = {.data = view.data.data(), .num_bytes = view.data.size()}};
  rpc::ValueWriter::tensor(outbound_.add(sent, std::move(owner)));
}

rpc::ValueReader Received::values() const noexcept {
  return rpc::ValueReader(inbound_.values());
}

// Skips one value with all its contents.
static void skip(rpc::ValueReader& values) noexcept {
  for (uint64_t num_left = 1; num_left > 0; --num_left) {
    const rpc::Value value = values.next();
    if (value.kind == rpc::Value::Kind::kBroken) return;
    if (value.kind == rpc::Value::Kind::kArray) num_left += value.count;
    if (value.kind == rpc::Value::Kind::kMap) num_left += 2 * value.count;
  }
}

// Format: [positional arguments, named ones or nil]
rpc::ValueReader Received::argument(size_t index) const noexcept {
  rpc::ValueReader found = values();
  const bool is_call = found.next().kind == rpc::Value::Kind::kArray;
  const rpc::Value positional = found.next();
  if (!is_call || positional.kind != rpc::Value::Kind::kArray || index >= positional.count) return rpc::ValueReader({});
  for (size_t i = 0; i < index; ++i) skip(found);
  return found;
}

rpc::ValueReader Received::argument(std::string_view name) const noexcept {
  rpc::ValueReader found = values();
  if (found.next().kind != rpc::Value::Kind::kArray) return rpc::ValueReader({});
  skip(found);
  const rpc::Value named = found.next();
  const uint64_t num_named = named.kind == rpc::Value::Kind::kMap ? named.count : 0;
  for (uint64_t i = 0; i < num_named; ++i) {
    if (found.next().text() == name) return found;
    skip(found);
  }
  return rpc::ValueReader({});
}

size_t Received::num_tensors() const noexcept {
  return inbound_.tensors().size();
}

Tensor Received::tensor(size_t index) const noexcept {
  if (index >= num_tensors()) return {};
  const rpc::Inbound::Tensor& tensor = inbound_.tensors()[index];
  return {.type = static_cast<DataType>(tensor.dtype),
          .shape = tensor.shape,
          .data = {tensor.data.data, tensor.data.num_bytes}};
}

HostBuffer Received::take(size_t index) noexcept {
  if (index >= num_tensors()) return {};
  rpc::Inbound::Tensor& tensor = inbound_.tensors()[index];
  if (tensor.location == rpc::TensorLocation::kPayloadFrame) return std::move(tensor.host_buffer);
  HostBuffer copy = HostBuffer::take(tensor.data.num_bytes);
  if (copy) std::memcpy(copy.data(), tensor.data.data, tensor.data.num_bytes);
  return copy;
}

Owner Received::take_owner(size_t index) noexcept {
  return index < num_tensors() ? std::move(inbound_.tensors()[index].owner) : Owner();
}

}  // namespace axon::library
