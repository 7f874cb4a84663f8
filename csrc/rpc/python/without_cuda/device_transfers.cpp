#include "rpc/python/device_transfers.hpp"

#include <stdexcept>

namespace axon::rpc_python {

rpc::DeviceRegion expose_on_gpu(c10::Device, const std::vector<rpc::Extent>&) {
  throw std::invalid_argument("expose: memory is on CUDA, and this torch_axon was built without CUDA");
}

void map_remote(const std::shared_ptr<rpc::RemoteMemory>&, c10::DeviceIndex) noexcept {}

c10::DeviceIndex current_gpu() noexcept {
  return 0;
}

void add_device_blocks(rpc::Transfer&, const std::vector<DeviceBlock>&, std::vector<Owner>,
                       std::optional<c10::Stream>) {
  throw std::runtime_error("the local memory is on CUDA, and this torch_axon was built without CUDA");
}

bool copies_directly(c10::DeviceIndex, std::span<const std::shared_ptr<rpc::RemoteMemory>>) {
  return false;
}

void add_direct_blocks(rpc::Transfer&, const ListedBlocks&, Owner, std::optional<c10::Stream>) {}

}  // namespace axon::rpc_python
