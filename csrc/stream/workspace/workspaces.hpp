// The workspaces of a group: none until one is asked for, and a larger one when more is.
//
//   Result<const Workspace*> workspace = workspaces.obtain(num_bytes, timeout);   // null: do without
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "stream/workspace/workspace.hpp"

namespace axon {

class Workspaces {
 public:
  Workspaces(Communicator& communicator, int device);

  // What a rank's may take at most: a setting, the same on all ranks.
  size_t most_bytes() const noexcept { return most_bytes_; }

  // At least so large, or null where the ranks are to do without: alike on all of them. They ask for the same at the
  // same place in the order of their collectives, one at a time; where one has to be made, that is a collective of the
  // host. It stays as long as the group.
  Result<const Workspace*> obtain(size_t num_bytes, std::chrono::milliseconds timeout);
  // The same, without making one.
  const Workspace* find(size_t num_bytes) const noexcept;
  // Whether obtain() would try to make one.
  bool would_make(size_t num_bytes) const noexcept {
    return find(num_bytes) == nullptr && num_bytes <= most_to_be_had_;
  }

  // The group has failed: streams that wait for peers go on. Any thread; never blocks. Idempotent.
  void give_up() noexcept;

  // The group ends, and no stream uses them any more: Workspace::let_go().
  void let_go(std::weak_ptr<void> graphs);

 private:
  Communicator& communicator_;
  const int device_;
  const size_t most_bytes_;
  size_t most_to_be_had_;

  mutable std::mutex mutex_;                      // guards these, for moments only
  std::vector<std::unique_ptr<Workspace>> made_;  // the last one is used; the smaller ones may be, still
  bool has_given_up_ = false;
};

}  // namespace axon
