// One matrix product's use of the group's stream and of the ranks' workspaces.
//
//   std::optional<Pushing> pushing = Pushing::open(backend, device, plan);   // none: communicate first
//   pushing->begin();
//   pushing->push(peer, offset, rows); pushing->tell(peer, 0);               // to every peer
//   pushing->await(0); pushing->block_current();                             // all peers' are in this rank's workspace
//   pushing->join();
#pragma once

#include <c10/core/Stream.h>

#include <optional>

#include "c10d/backend.hpp"
#include "stream/device_group.hpp"
#include "stream/workspace.hpp"

namespace axon {

class Pushing {
 public:
  struct Plan {
    DeviceOperation operation{};
    at::ScalarType dtype{};
    size_t num_bytes = 0;        // moved by all ranks together
    size_t workspace_bytes = 0;  // of a rank
  };

  static std::optional<Pushing> open(AxonBackend& backend, at::Device device, const Plan& plan);
  Pushing(Pushing&&) noexcept = default;
  // Half-way, for an exception: ends the group, whose other ranks would wait for what never comes.
  ~Pushing();

  // On the current stream: behind it all ranks have come here, and nobody uses the workspaces any more.
  void begin();
  // What is pushed from here on is there when the current stream has come this far.
  void follow_current() { order(current_, pushing_); }
  void push(size_t peer, size_t offset, const at::Tensor& rows) {
    copy(workspace_->at(static_cast<int>(peer)) + offset, rows);
  }
  // Tells the peer that it has this piece of what it gets: each once.
  void tell(size_t peer, int piece) { side_.tell(*workspace_, static_cast<int>(peer), piece); }
  // What the group's stream is given later finds this piece of all peers in the workspace. Comes behind the last
  // tell(), and on the host behind what is to run meanwhile: with CUDA_DEVICE_MAX_CONNECTIONS=1 all streams may wait.
  void await(int piece) { side_.await(*workspace_, piece); }
  void copy_out(const at::Tensor& source, const at::Tensor& target) {
    copy(static_cast<std::byte*>(target.data_ptr()), source);
  }
  // The current stream goes on behind all that the group's stream has been given so far.
  void block_current() { order(pushing_, current_); }
  // The same, at the end: tensors are the caller's again.
  void join();

  // A part of this rank's workspace.
  at::Tensor tensor(size_t offset, at::IntArrayRef sizes, const at::TensorOptions& options) const;

 private:
  Pushing(CudaSide& side, const Workspace* workspace, const Meeting& meeting, int rank);
  static void order(c10::Stream earlier, c10::Stream later);
  void copy(std::byte* target, const at::Tensor& source);

  CudaSide& side_;
  const Workspace* workspace_;
  Meeting meeting_;
  int rank_;
  c10::Stream current_;
  c10::Stream pushing_;
  bool is_open_ = false;  // between begin() and join()
};

}  // namespace axon
