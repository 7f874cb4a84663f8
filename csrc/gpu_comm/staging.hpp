// Stages CUDA buffers through pinned memory for the host engine, for pairs of ranks, types and operations that no
// kernel serves.
//
//   AXON_TRY(staging.copy_in(stream));             // copies inputs to pinned memory, then sets the start flag
//   operation.start_flag = &staging.start_flag();  // the host engine starts when the stream has set it …
//   operation.done_flag = &staging.done_flag();    // … on staging.inputs() and staging.outputs()
//   communicator.start(operation);
//   AXON_TRY(staging.copy_out(stream));            // the stream waits for the operation, then copies the outputs
//
// No host thread waits for a stream. A stream waits for nothing but the engine, whose operations always end. A graph
// would replay the copies but not the operation, so staging cannot be captured.
//
// Owns its pinned memory until destroyed. Not thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "cuda/stream.hpp"
#include "gpu_comm/pinned_pool.hpp"
#include "memory/buffer.hpp"

namespace axon::gpu_comm {

// How an operation uses its outputs.
struct OutputAccess {
  bool read = false;  // before the operation starts
  bool written = true;
};

// The device buffers of an operation, borrowed as long as the Staging lives.
struct DeviceBuffers {
  std::span<const ConstBuffer> inputs;
  std::span<const Buffer> outputs;
  OutputAccess access;
};

class Staging {
 public:
  // Takes pinned memory for copies of all buffers, which must be on the current device.
  static Result<Staging> open(const DeviceBuffers& buffers);
  // Gives the memory back. The engine must have released it before (Operation::on_released).
  ~Staging();
  Staging(Staging&&) noexcept = default;
  Staging& operator=(Staging&&) = delete;

  std::span<const ConstBuffer> inputs() const noexcept { return host_inputs_; }
  std::span<const Buffer> outputs() const noexcept { return host_outputs_; }
  const std::atomic<uint32_t>& start_flag() const noexcept { return flags().start_flag; }
  std::atomic<uint32_t>& done_flag() const noexcept { return flags().done_flag; }

  Status copy_in(cuda::StreamView stream);
  Status copy_out(cuda::StreamView stream);

 private:
  // Flags at the front of the pinned memory.
  struct Flags {
    std::atomic<uint32_t> start_flag;  // set by the stream for the engine
    std::atomic<uint32_t> done_flag;   // set by the engine for the stream
  };

  Staging(PinnedPool& pool, PinnedPool::Allocation allocation, const DeviceBuffers& buffers);
  Flags& flags() const noexcept { return *reinterpret_cast<Flags*>(allocation_.memory.data()); }

  PinnedPool& pool_;
  PinnedPool::Allocation allocation_;  // empty after a move
  DeviceBuffers device_;
  std::vector<ConstBuffer> host_inputs_;
  std::vector<Buffer> host_outputs_;
};

}  // namespace axon::gpu_comm
