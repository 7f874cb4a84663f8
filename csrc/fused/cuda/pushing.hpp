// One matrix product's use of the group's streams, one that pushes and one that awaits, and of the ranks' workspaces.
//
//   std::optional<Pushing> pushing = Pushing::open(backend, device, plan);   // none: communicate first
//   pushing->begin();
//   pushing->push(peer, offset, rows); pushing->tell(peer, 0);               // to every peer
//   pushing->await(0);                                                       // all peers' are in this rank's workspace
//   pushing->join();
#pragma once

#include <c10/core/Stream.h>

#include <optional>
#include <vector>

#include "c10d/backend.hpp"
#include "gpu_comm/device_group.hpp"
#include "gpu_comm/workspace/workspace.hpp"

namespace axon::fused {

class Pushing {
 public:
  struct Plan {
    cuda::DeviceOperation operation{};
    at::ScalarType dtype{};
    size_t num_bytes = 0;         // moved by all ranks together
    size_t workspace_bytes = 0;   // of a rank
    std::vector<int64_t> shared;  // what else is the same on all ranks
  };

  static std::optional<Pushing> open(c10d_backend::AxonBackend& backend, at::Device device, const Plan& plan);
  Pushing(Pushing&&) noexcept = default;
  // Half-way, for an exception: ends the group, whose other ranks would wait for what never comes.
  ~Pushing();

  // On the current stream: behind it all ranks have come here, and nobody uses the workspaces any more.
  void begin();
  // What is pushed from here on is there when the current stream has come this far.
  void follow_current() { side_.order(current_, pushing_); }
  void push(size_t peer, size_t offset, const at::Tensor& rows) {
    copy(workspace_->at(static_cast<int>(peer)) + offset, rows, pushing_);
  }
  // Tells the peer that it has this tile of what it gets: each once.
  void tell(size_t peer, int tile) { side_.tell(*workspace_, static_cast<int>(peer), tile); }
  // The current stream goes on once this tile of all peers is in the workspace. On the host this comes behind the last
  // tell(), and behind what is to run meanwhile: with CUDA_DEVICE_MAX_CONNECTIONS=1 all streams may wait.
  void await(int tile);
  // Beside the current stream: of what has been pushed, behind that, and of what has been awaited.
  void copy_pushed(const at::Tensor& rows, const at::Tensor& target) { copy(target.data_ptr(), rows, pushing_); }
  void copy_awaited(const at::Tensor& rows, const at::Tensor& target) {
    copy(target.data_ptr(), rows, awaiting_);
    awaiting_is_ahead_ = true;
  }
  // On the current stream: `output` becomes the reduction of what the ranks' slots of this rank's workspace hold.
  void reduce(size_t slot_bytes, Reduction reduction, const at::Tensor& output) const;
  // The current stream goes on behind all that: tensors are the caller's again.
  void join();

  // A part of this rank's workspace.
  at::Tensor tensor(size_t offset, at::IntArrayRef sizes, const at::TensorOptions& options) const;

 private:
  Pushing(c10d_backend::CudaSide& side, const gpu_comm::Workspace* workspace, const gpu_comm::StreamBarrier& barrier,
          int rank);
  static void copy(void* target, const at::Tensor& source, c10::Stream stream);

  c10d_backend::CudaSide& side_;
  const gpu_comm::Workspace* workspace_;
  gpu_comm::StreamBarrier barrier_;
  int rank_;
  c10::Stream current_;
  c10::Stream pushing_;
  c10::Stream awaiting_;            // of its own: tiles come while others are pushed
  bool awaiting_is_ahead_ = false;  // has what the current stream does not wait for yet
  bool is_open_ = false;            // between begin() and join()
};

}  // namespace axon::fused
