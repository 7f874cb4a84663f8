// Slots that the collectives of a CUDA graph share. Those on one stream run one after the other: a program that changes
// a capture's dependencies itself must keep that order.
//
//   if (waits_for_all_slots(plan)) slots = captured.take(capture, stream, num_bytes);
//
// Only operations share which their stream passes after the engine has given back all slots. Other ones, such as a send
// or the broadcast of a root, go on beside what follows them. The relays own the memory. Guarded by its owner's lock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/status.hpp"
#include "cuda/stream.hpp"
#include "gpu_comm/pinned_pool.hpp"

namespace axon::gpu_comm {

class CapturedSlots {
 public:
  // Returns memory of at least this size for the stream's next collective. `capture` is the number of its capture.
  Result<std::shared_ptr<PinnedBlock>> take(uint64_t capture, cuda::StreamView stream, size_t num_bytes);

 private:
  // By capture and stream: the largest so far.
  std::map<std::pair<uint64_t, cudaStream_t>, std::weak_ptr<PinnedBlock>> blocks_;
};

}  // namespace axon::gpu_comm
