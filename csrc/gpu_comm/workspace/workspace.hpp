// Memory on every rank's GPU that all ranks of a group have mapped. Copy engines write there what one rank's stream
// sends to another rank's stream.
//
//   Result<std::unique_ptr<Workspace>> made = Workspace::make(communicator, {.device = …, .num_bytes = …});
//   copy_async(workspace->at(peer) + offset, rows, num_bytes, stream);   // after a barrier of the DeviceGroup
//
// A rank may release its part when its own streams and graphs no longer use the workspace. What peers still write then
// goes to memory that their mappings keep.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/file_descriptor.hpp"
#include "cuda/shared_memory.hpp"
#include "engine/communicator.hpp"
#include "gpu_comm/workspace/arrivals.hpp"
#include "kernels/reduce_slots.hpp"

namespace axon::gpu_comm {

class Workspace {
 public:
  struct Wish {
    int device = 0;
    size_t num_bytes = 0;  // the same on all ranks
    std::chrono::milliseconds timeout{0};
  };
  // The location of a rank's part and its flags, as sent on the wire.
  struct Offer {
    uint64_t num_bytes = 0;  // as mapped
    int32_t pid = 0;
    int32_t memory = -1;  // descriptors in that process; −1: not available
    int32_t flags = -1;
    int32_t unused = 0;
  };

  // A collective on the host. All ranks, whose GPUs need peer access, call it at the same position in the order of
  // collectives. Returns null on all ranks if one cannot allocate or map the memory.
  static Result<std::unique_ptr<Workspace>> make(engine::Communicator& communicator, const Wish& wish);

  // Destroys the workspaces. Those that graphs may use are destroyed in a later call, after the graphs; these graphs
  // share `graphs` with the group or its detach notice. No stream may use the workspaces any more.
  static void let_go(std::vector<std::unique_ptr<Workspace>> workspaces, std::weak_ptr<void> graphs);

  size_t num_bytes() const noexcept { return num_bytes_; }
  // A rank's part, as this GPU sees it.
  std::byte* at(int rank) const noexcept { return parts_[static_cast<size_t>(rank)].data(); }
  // Reduces what all ranks have put into slots of one's part. The slots follow each other from its beginning. Their
  // address and number are filled in.
  Status reduce(int rank, kernels::ReduceSlotsCall call, cuda::StreamView stream) const;

  // Signals between ranks about what they have pushed.
  const std::shared_ptr<Arrivals>& arrivals() const noexcept { return arrivals_; }

 private:
  explicit Workspace(size_t num_bytes) noexcept : num_bytes_(num_bytes) {}
  Status allocate(const engine::Communicator& communicator, const Wish& wish);
  Offer offer() const noexcept;
  Status map(std::span<const Offer> offers, int own_rank, int device);
  Status import(int rank, const Offer& offer, int device);

  const size_t num_bytes_;
  std::optional<cuda::SharedMemory> own_;  // until all parts are mapped
  FileDescriptor shared_;                  // until all parts are mapped
  std::vector<cuda::SharedMemory> parts_;  // by rank
  std::shared_ptr<Arrivals> arrivals_;
};

}  // namespace axon::gpu_comm
