#include "rpc/python/zero_copy_get.hpp"

#include <stdexcept>

namespace axon::rpc_python {

std::optional<rpc::MemoryHandle> expose(const at::Tensor&) {
  return std::nullopt;
}

void leave_after_current_stream(rpc::Outbound&, at::Device) {}

void check_not_captured(at::Device) {}

void read_exposed(rpc::Inbound::Tensor&, const at::Tensor&, const rpc::Connection&) {
  throw NotReadable("the peer sent a GPU tensor by reference, but this torch_axon was built without CUDA");
}

void let_peers_read() noexcept {}

std::vector<std::string> gpus_readable_of(const rpc::Connection&) {
  return {};
}

uint64_t own_gpus_among(const std::vector<std::string>&) {
  return 0;
}

}  // namespace axon::rpc_python
