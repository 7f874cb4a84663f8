// CUDA buffers on their way through the host engine: for pairs of ranks, types and operations that no kernel serves.
//
//   AXON_TRY(staging.copy_in(stream));       // what is read, to pinned memory; then the start flag is set
//   operation.start_flag = &staging.start_flag();  // the host engine starts when the stream has come that far …
//   operation.done_flag = &staging.done();   // … on staging.inputs() and staging.outputs()
//   communicator.start(operation);
//   AXON_TRY(staging.copy_out(stream));      // the stream waits for the operation, then copies what was written
//
// No host thread waits for a stream, and no stream for anything but the engine, whose operations always end. A graph
// would replay the copies but not the operation, so none of this can be captured.
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

// What an operation does with its outputs, beside what their name says.
struct OutputAccess {
  bool read = false;  // before it starts
  bool written = true;
};

// The device buffers of an operation; borrowed until the Staging is gone.
struct DeviceBuffers {
  std::span<const ConstBuffer> inputs;
  std::span<const Buffer> outputs;
  OutputAccess access;
};

class Staging {
 public:
  // Takes pinned memory for copies of all buffers, which are on the current device.
  static Result<Staging> open(const DeviceBuffers& buffers);
  // Gives the memory back. By then the engine must have let go of it (Operation::on_released).
  ~Staging();
  Staging(Staging&&) noexcept = default;
  Staging& operator=(Staging&&) = delete;

  std::span<const ConstBuffer> inputs() const noexcept { return host_inputs_; }
  std::span<const Buffer> outputs() const noexcept { return host_outputs_; }
  const std::atomic<uint32_t>& start_flag() const noexcept { return words().start_flag; }
  std::atomic<uint32_t>& done() const noexcept { return words().done; }

  Status copy_in(cuda::StreamView stream);
  Status copy_out(cuda::StreamView stream);

 private:
  // At the front of the pinned memory.
  struct Words {
    std::atomic<uint32_t> start_flag;  // by the stream, for the engine
    std::atomic<uint32_t> done;        // by the engine, for the stream
  };

  Staging(PinnedPool& pool, PinnedPool::Allocation allocation, const DeviceBuffers& buffers);
  Words& words() const noexcept { return *reinterpret_cast<Words*>(allocation_.memory.data()); }

  PinnedPool& pool_;
  PinnedPool::Allocation allocation_;  // no memory after a move
  DeviceBuffers device_;
  std::vector<ConstBuffer> host_inputs_;
  std::vector<Buffer> host_outputs_;
};

}  // namespace axon::gpu_comm
