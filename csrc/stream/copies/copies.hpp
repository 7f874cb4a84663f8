// Large operations of a group by copy engines, which push into the ranks' workspaces: they take a link's whole
// bandwidth in both directions and no multiprocessors, and need no address of a peer's tensor. Kernels take from there
// what has come.
//
//   caller's stream    meet │ take each piece as it comes: copy it to its tensor, or fold it
//   pushing streams         │ copy a piece into the peer's workspace, copy the epoch behind it: a flag
//
// All that somebody waits for is a kernel's wait: it ends by the group's timeout, its abort, its failure, or the loss
// of a rank. After a failure copies go on into workspaces, never into tensors.
//
// One a group; needs its lock.
#pragma once

#include <array>
#include <optional>

#include "stream/copies/copy_call.hpp"
#include "stream/copies/side_streams.hpp"
#include "stream/launch.hpp"
#include "stream/workspace/workspace.hpp"

namespace axon {

class Copies {
 public:
  // Of AXON_COPY_KB: the same on all ranks.
  explicit Copies(CopyThreshold threshold) noexcept : threshold_(threshold) {}

  CopyThreshold threshold() const noexcept { return threshold_; }

  // Of each rank, for an operation of that kind; 0: so many ranks have no use for copies.
  static size_t workspace_bytes(int num_ranks, size_t most_bytes) noexcept;

  // Enqueues it. Also where that fails the stream goes on behind all that has been enqueued.
  Status launch(const LaunchSite& site, const Workspace& workspace, const Operation& operation);

 private:
  Result<const SideStreams*> streams_beside(StreamView stream);

  const CopyThreshold threshold_;
  // Made at first use. Those of captures are apart: what a capture has used is part of it to its end.
  std::optional<SideStreams> streams_;
  std::optional<SideStreams> captured_streams_;
};

}  // namespace axon
