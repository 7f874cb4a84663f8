// What on one GPU may hold kernels of this process: the streams and graphs of its groups.
//
// Some calls of CUDA wait for all kernels of a device and hold up every launch meanwhile; a kernel that waits for a
// peer might then wait for ever, since the peer may need what this process cannot launch. They are made while the
// ledger is locked, and only if it is idle.
//
//   const LaunchLedger::Lock lock = ledger.lock();        // around each launch
//   ledger.note(order, lock);                             // before or behind it
//   if (ledger.is_idle(lock)) …                           // nothing of ours runs, or can begin to
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "stream/stream_order.hpp"

namespace axon {

// Any thread; of one device, which is current in every call.
class LaunchLedger {
 public:
  using Lock = std::unique_lock<std::mutex>;

  Lock lock() { return Lock(mutex_); }
  // Without waiting: owns nothing while somebody else does.
  Lock try_lock() { return Lock(mutex_, std::try_to_lock); }

  // A group's streams and graphs, as they are now.
  void note(const StreamOrder& order, const Lock&);
  // The group launches nothing more; its streams are empty, its graphs may still be launched.
  void forget(const StreamOrder& order, const Lock&);

  bool is_idle(const Lock&) const;

 private:
  struct Holders {
    std::vector<StreamView> streams;
    std::weak_ptr<void> graphs;  // beside the group's own reference: held by graphs
  };

  std::mutex mutex_;
  std::map<const StreamOrder*, Holders> groups_;
  std::vector<std::weak_ptr<void>> graphs_left_;  // of groups that are gone
};

}  // namespace axon
