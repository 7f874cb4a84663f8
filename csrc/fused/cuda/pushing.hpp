// One matrix product's use of the ranks' workspaces and of two streams of the group: a pushing and an awaiting one.
//
//    std::optional<Pushing> pushing = Pushing::open(backend, device, plan);   // empty: communicate first
//    pushing->begin();
//    pushing->push(peer, offset, rows);                                       // to every peer
//    pushing->tell(peer, 0);
//    pushing->await(0);                                                       // the data of all peers is here
//    pushing->join();
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
    size_t workspace_bytes = 0;   // of one rank
    std::vector<int64_t> shared;  // other values that must be the same on all ranks
  };

  static std::optional<Pushing> open(c10d_backend::AxonBackend& backend, at::Device device, const Plan& plan);
  Pushing(Pushing&&) noexcept = default;
  // If an exception interrupts the product, this aborts the group: its other ranks would wait for ever.
  ~Pushing();

  // Enqueues a barrier on the current stream: when it has passed, no rank uses the workspaces any more.
  void begin();
  // Makes later pushes wait for the current stream's present work.
  void follow_current() { side_.order(current_, pushing_); }
  void push(size_t peer, size_t offset, const at::Tensor& rows) {
    copy(workspace_->at(static_cast<int>(peer)) + offset, rows, pushing_);
  }
  // Signals to the peer that this tile of its data has arrived. Called once per tile.
  void tell(size_t peer, int tile) { side_.tell(*workspace_, static_cast<int>(peer), tile); }
  // Makes the current stream wait until this tile of all peers is in the workspace. The host must call this after the
  // last tell(), and after it has enqueued the work that runs meanwhile: with CUDA_DEVICE_MAX_CONNECTIONS=1 all streams
  // may wait.
  void await(int tile);
  // Copy concurrently with the current stream: pushed rows following the pushes, awaited rows following their arrival.
  void copy_pushed(const at::Tensor& rows, const at::Tensor& target) { copy(target.data_ptr(), rows, pushing_); }
  void copy_awaited(const at::Tensor& rows, const at::Tensor& target) {
    copy(target.data_ptr(), rows, awaiting_);
    awaiting_is_ahead_ = true;
  }
  // Sets `output` to the reduction of the ranks' slots in this rank's workspace, on the current stream.
  void reduce(size_t slot_bytes, Reduction reduction, const at::Tensor& output) const;
  // Makes the current stream wait for all of that. After this, the caller may reuse the tensors.
  void join();

  // A view of this rank's workspace.
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
  c10::Stream awaiting_;            // separate: tiles arrive while others are pushed
  bool awaiting_is_ahead_ = false;  // holds work that the current stream does not wait for yet
  bool is_open_ = false;            // between begin() and join()
};

}  // namespace axon::fused
