#include "rpc/python/cuda/cuda_device.hpp"

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "ipc/block_copier.hpp"

namespace axon::rpc_python {

namespace {

Result<rpc::NewSlot::Memory> pin(int gpu, size_t num_bytes) {
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(gpu);
  Result<cuda::PinnedMemory> memory = cuda::PinnedMemory::allocate(num_bytes);
  if (!memory.ok()) return std::move(memory.status());
  auto owned = std::make_shared<cuda::PinnedMemory>(std::move(memory).value());
  std::byte* const data = owned->data();
  return rpc::NewSlot::Memory{.data = data, .owner = Owner::of(std::move(owned))};
}

// Never destroyed: GPUs may use the slots until the process exits.
Result<rpc::StagingSlots*> allocate_slots(int gpu) {
  Result<rpc::NewSlot::Memory> memory = pin(gpu, CudaDevice::kNumSlots * rpc::kSegmentNumBytes);
  if (!memory.ok()) return std::move(memory.status());
  std::vector<Buffer> slots;
  for (size_t i = 0; i < CudaDevice::kNumSlots; ++i) {
    slots.push_back({.data = memory.value().data + i * rpc::kSegmentNumBytes, .num_bytes = rpc::kSegmentNumBytes});
  }
  return new rpc::StagingSlots(std::move(slots), std::move(memory.value().owner));
}

std::mutex& devices_mutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}

Result<rpc::StagingSlots*> once(rpc::StagingSlots*& slots, int gpu) {
  if (slots != nullptr) return slots;
  Result<rpc::StagingSlots*> allocated = allocate_slots(gpu);
  if (allocated.ok()) slots = allocated.value();
  return allocated;
}

// CUDA registered its exit handlers when it was first called, so its part ends after the threads have stopped.
struct Devices {
  std::map<int, CudaDevice*> by_gpu;  // never destroyed: a thread may be stuck when the process exits
  rpc::StagingSlots* slots_for_peers = nullptr;
  rpc::StagingSlots* slots_for_transfers = nullptr;
  ~Devices() {
    for (const auto& [gpu, device] : by_gpu) device->stop();
  }
};

Devices& devices() {
  static Devices all;
  return all;
}

}  // namespace

Result<CudaDevice*> CudaDevice::of(int gpu) {
  const std::lock_guard lock(devices_mutex());
  CudaDevice*& device = devices().by_gpu[gpu];
  if (device != nullptr) return device;
  Result<rpc::StagingSlots*> slots = once(devices().slots_for_peers, gpu);
  Result<ipc::BlockCopier*> copier = ipc::BlockCopier::of(gpu);
  if (!slots.ok() || !copier.ok()) {
    devices().by_gpu.erase(gpu);
    return slots.ok() ? std::move(copier.status()) : std::move(slots.status());
  }
  device = new CudaDevice(gpu, *slots.value());
  return device;
}

void CudaDevice::stop() noexcept {
  launcher_.stop();
  copier_.stop();
  allocator_.stop();
}

Result<rpc::StagingSlots*> CudaDevice::slots_for_transfers(int gpu) {
  const std::lock_guard lock(devices_mutex());
  return once(devices().slots_for_transfers, gpu);
}

void CudaDevice::start(rpc::DeviceCopy& copy) noexcept {
  if (Status added = launcher_.add([this, &copy] { launch(copy); }); !added.ok()) copy.failed(std::move(added));
}

void CudaDevice::allocate(rpc::NewSlot& slot) noexcept {
  Status added = allocator_.add([this, &slot] { slot.made(pin(gpu_, rpc::kSegmentNumBytes)); });
  if (!added.ok()) slot.made(std::move(added));
}

void CudaDevice::launch(rpc::DeviceCopy& copy) const noexcept {
  Result<ipc::BlockCopier*> copier = ipc::BlockCopier::of(gpu_);
  if (!copier.ok()) return copy.failed(std::move(copier.status()));
  const auto fill = [&]() -> Result<ipc::BlockCopier::Blocks> {
    ipc::BlockCopier::Blocks blocks;
    blocks.reserve(copy.blocks.size());
    for (const rpc::CopiedBlock& block : copy.blocks) {
      blocks.push_back({.source = block.source, .target = block.target, .num_bytes = block.num_bytes});
    }
    return blocks;
  };
  Result<ipc::BlockCopier::UnderWay> launched = copier.value()->copy({.fill = fill});
  if (!launched.ok()) return copy.failed(std::move(launched.status()));
  auto under_way = std::make_shared<ipc::BlockCopier::UnderWay>(std::move(launched).value());
  const std::atomic<uint32_t>& flag = under_way->flag();
  copy.launched(flag, Owner::of(std::move(under_way)));
}

}  // namespace axon::rpc_python
