// CUDA blocks on their way through the host engine: for pairs of ranks, types and operations that no kernel serves.
//
//   Result<Staging> staging = Staging::open(access, blocks…);
//   AXON_TRY(staging.copy_in(stream));       // what is read, to pinned memory; then the gate opens
//   operation.gate = &staging.gate();        // the host engine starts when the stream has come that far …
//   communicator.start(operation);           // … on staging.inputs() and staging.outputs()
//   AXON_TRY(staging.copy_out(stream));      // the stream waits for host_done(), then copies what was written
//
// No host thread waits for a stream, and no stream for anything but the engine, whose operations always end. A graph
// would replay the copies but not the operation, so none of this can be captured.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "memory/buffer.hpp"

namespace axon {

// What happens to the outputs of an operation.
struct OutputAccess {
  bool read = false;  // before it starts
  bool written = true;
};

class Staging {
 public:
  // Takes pinned memory for copies of all blocks, from a pool that the process keeps.
  static Result<Staging> open(std::span<const ConstBuffer> inputs, std::span<const Buffer> outputs,
                              OutputAccess access);
  // Gives the memory back, for reuse once the stream of copy_out() has come past it. By then the engine must have let
  // go of it (Operation::on_released).
  ~Staging();
  Staging(Staging&&) noexcept = default;
  Staging& operator=(Staging&&) = delete;

  std::span<const ConstBuffer> inputs() const noexcept { return host_inputs_; }
  std::span<const Buffer> outputs() const noexcept { return host_outputs_; }
  const std::atomic<uint32_t>& gate() const noexcept { return words().gate; }

  Status copy_in(StreamView stream);
  Status copy_out(StreamView stream);
  // The operation has ended, well or not: the stream goes on. From any thread; no CUDA call.
  void host_done() noexcept { words().done.store(1, std::memory_order_release); }

 private:
  // At the front of the pinned memory.
  struct Words {
    std::atomic<uint32_t> gate;  // by the stream, for the engine
    std::atomic<uint32_t> done;  // by the engine, for the stream
  };

  Staging(PinnedMemory memory, size_t num_bytes) noexcept : memory_(std::move(memory)), num_bytes_(num_bytes) {}
  Words& words() const noexcept { return *reinterpret_cast<Words*>(memory_.data()); }

  PinnedMemory memory_;  // empty after a move
  size_t num_bytes_;
  OutputAccess access_;
  std::span<const ConstBuffer> inputs_;  // on the device; as the operation's owner keeps them
  std::span<const Buffer> outputs_;
  std::vector<ConstBuffer> host_inputs_;
  std::vector<Buffer> host_outputs_;
  std::optional<Event> passed_;  // recorded by copy_out()
};

}  // namespace axon
