#include "gpu_comm/staging.hpp"

#include <new>

#include "cuda/memops.hpp"
#include "cuda/memory.hpp"

namespace axon::gpu_comm {

// Buffers start at addresses where the engine's arithmetic is fastest.
static constexpr size_t kAlignment = 64;

static size_t aligned(size_t num_bytes) noexcept {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

static Status copy(ConstBuffer source, std::byte* target, cuda::StreamView stream) {
  return copy_async(target, source.data, source.num_bytes, stream);
}

Result<Staging> Staging::open(const DeviceBuffers& buffers) {
  size_t num_bytes = kAlignment;
  for (const ConstBuffer& input : buffers.inputs) num_bytes += aligned(input.num_bytes);
  for (const Buffer& output : buffers.outputs) num_bytes += aligned(output.num_bytes);
  PinnedPool& pool = PinnedPool::current();
  Result<PinnedPool::Allocation> allocation = pool.take(num_bytes);
  if (!allocation.ok()) return std::move(allocation.status());
  return Staging(pool, std::move(allocation).value(), buffers);
}

Staging::Staging(PinnedPool& pool, PinnedPool::Allocation allocation, const DeviceBuffers& buffers)
    : pool_(pool), allocation_(std::move(allocation)), device_(buffers) {
  static_assert(sizeof(Flags) <= kAlignment);
  new (allocation_.memory.data()) Flags{};
  std::byte* next = allocation_.memory.data() + kAlignment;
  const auto place = [&next](size_t num_bytes) {
    std::byte* const data = next;
    next += aligned(num_bytes);
    return Buffer{.data = data, .num_bytes = num_bytes};
  };
  for (const ConstBuffer& input : buffers.inputs) host_inputs_.push_back(place(input.num_bytes));
  for (const Buffer& output : buffers.outputs) host_outputs_.push_back(place(output.num_bytes));
}

Staging::~Staging() {
  if (allocation_.memory.data() != nullptr) pool_.give_back(std::move(allocation_));
}

Status Staging::copy_in(cuda::StreamView stream) {
  for (size_t i = 0; i < host_inputs_.size(); ++i) {
    AXON_TRY(copy(device_.inputs[i], const_cast<std::byte*>(host_inputs_[i].data), stream));
  }
  if (device_.access.read) {
    for (size_t i = 0; i < host_outputs_.size(); ++i) {
      AXON_TRY(copy(device_.outputs[i], host_outputs_[i].data, stream));
    }
  }
  AXON_TRY(write_flag(stream, &flags().start_flag, 1));
  return stream.record(allocation_.last_use);  // copy_out() may never be called
}

Status Staging::copy_out(cuda::StreamView stream) {
  AXON_TRY(wait_for_flag(stream, &flags().done_flag, 1));
  if (device_.access.written) {
    for (size_t i = 0; i < host_outputs_.size(); ++i) {
      AXON_TRY(copy(host_outputs_[i], device_.outputs[i].data, stream));
    }
  }
  return stream.record(allocation_.last_use);
}

}  // namespace axon::gpu_comm
