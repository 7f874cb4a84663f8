#include "gpu_comm/staging.hpp"

#include <new>

#include "cuda/memops.hpp"
#include "cuda/memory.hpp"

namespace axon {

// Blocks start where the engine's arithmetic is fastest.
static constexpr size_t kAlignment = 64;

static size_t aligned(size_t num_bytes) noexcept {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

static Status copy(ConstBuffer source, std::byte* target, StreamView stream) {
  return copy_async(target, source.data, source.num_bytes, stream);
}

Result<Staging> Staging::open(const DeviceBlocks& blocks) {
  size_t num_bytes = kAlignment;
  for (const ConstBuffer& input : blocks.inputs) num_bytes += aligned(input.num_bytes);
  for (const Buffer& output : blocks.outputs) num_bytes += aligned(output.num_bytes);
  PinnedPool& pool = PinnedPool::current();
  Result<PinnedPool::Block> block = pool.take(num_bytes);
  if (!block.ok()) return std::move(block.status());
  return Staging(pool, std::move(block).value(), blocks);
}

Staging::Staging(PinnedPool& pool, PinnedPool::Block block, const DeviceBlocks& blocks)
    : pool_(pool), block_(std::move(block)), device_(blocks) {
  static_assert(sizeof(Words) <= kAlignment);
  new (block_.memory.data()) Words{};
  std::byte* next = block_.memory.data() + kAlignment;
  const auto place = [&next](size_t num_bytes) {
    std::byte* const data = next;
    next += aligned(num_bytes);
    return Buffer{.data = data, .num_bytes = num_bytes};
  };
  for (const ConstBuffer& input : blocks.inputs) host_inputs_.push_back(place(input.num_bytes));
  for (const Buffer& output : blocks.outputs) host_outputs_.push_back(place(output.num_bytes));
}

Staging::~Staging() {
  if (block_.memory.data() != nullptr) pool_.give_back(std::move(block_));
}

Status Staging::copy_in(StreamView stream) {
  for (size_t i = 0; i < host_inputs_.size(); ++i) {
    AXON_TRY(copy(device_.inputs[i], const_cast<std::byte*>(host_inputs_[i].data), stream));
  }
  if (device_.access.read) {
    for (size_t i = 0; i < host_outputs_.size(); ++i) {
      AXON_TRY(copy(device_.outputs[i], host_outputs_[i].data, stream));
    }
  }
  AXON_TRY(write_word(stream, &words().gate, 1));
  return stream.record(block_.last_use);  // copy_out() may never be called
}

Status Staging::copy_out(StreamView stream) {
  AXON_TRY(wait_for_word(stream, &words().done, 1));
  if (device_.access.written) {
    for (size_t i = 0; i < host_outputs_.size(); ++i) {
      AXON_TRY(copy(host_outputs_[i], device_.outputs[i].data, stream));
    }
  }
  return stream.record(block_.last_use);
}

}  // namespace axon
