// Memory of every rank's GPU that all ranks of a group have mapped: where copy engines put what one rank's stream sends
// to another's.
//
//   Result<std::unique_ptr<Workspace>> made = Workspace::make(communicator, {.device = …, .num_bytes = …});
//   copy_async(workspace->at(peer) + offset, rows, num_bytes, stream);    // behind a meeting of a DeviceGroup
//
// A rank may give its part up whenever its own streams and graphs use none of it any more: what peers still write then
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
  // Where a rank's part and its words are to be had; on the wire.
  struct Offer {
    uint64_t num_bytes = 0;  // as mapped
    int32_t pid = 0;
    int32_t memory = -1;  // descriptors in that process; −1: it has none
    int32_t words = -1;
    int32_t unused = 0;
  };

  // A collective of the host, made at the same place in the order of collectives on all ranks, whose GPUs reach each
  // other. Null on all of them if one cannot have or map it.
  static Result<std::unique_ptr<Workspace>> make(engine::Communicator& communicator, const Wish& wish);

  // Destroys them, but those that graphs may use (which share `graphs` with the group, or what it has left behind) in a
  // later call, once the graphs are gone. No stream uses them any more.
  static void let_go(std::vector<std::unique_ptr<Workspace>> workspaces, std::weak_ptr<void> graphs);

  size_t num_bytes() const noexcept { return num_bytes_; }
  // A rank's part, as this GPU sees it.
  std::byte* at(int rank) const noexcept { return parts_[static_cast<size_t>(rank)].data(); }
  // What all ranks have put into slots of one's part, one behind the other from its begin on: where these are, and how
  // many, is filled in.
  Status reduce(int rank, kernels::ReduceSlotsCall call, cuda::StreamView stream) const;

  // How ranks tell each other what they have pushed there.
  const std::shared_ptr<Arrivals>& arrivals() const noexcept { return arrivals_; }

 private:
  explicit Workspace(size_t num_bytes) noexcept : num_bytes_(num_bytes) {}
  Status allocate(const engine::Communicator& communicator, const Wish& wish);
  Offer offer() const noexcept;
  Status map(std::span<const Offer> offers, int own_rank, int device);
  Status import(int rank, const Offer& offer, int device);

  const size_t num_bytes_;
  std::optional<cuda::SharedMemory> own_;  // until all are mapped
  FileDescriptor shared_;                  // so long, too
  std::vector<cuda::SharedMemory> parts_;  // by rank
  std::shared_ptr<Arrivals> arrivals_;
};

}  // namespace axon::gpu_comm
