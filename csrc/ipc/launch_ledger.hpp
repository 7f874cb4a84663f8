// What on one GPU may hold kernels of this process: the streams and graphs of its groups.
//
// Some calls of CUDA wait for all kernels of a device and hold up every launch meanwhile; a kernel that waits for a
// peer might then wait for ever, since the peer may need what this process cannot launch. They are made while nothing
// of ours runs or is launched.
//
//   const LaunchLedger::Launching launching = ledger.launching();   // around each launch; beside others
//   AXON_TRY(ledger.note(order, stream));                           // behind it
//   ledger.run_if_idle([&] { mappings.clear(); });
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "ipc/stream_order.hpp"

namespace axon::ipc {

// Any thread; of one device, which is current in every call.
class LaunchLedger {
 public:
  using Launching = std::shared_lock<std::shared_mutex>;

  Launching launching() { return Launching(launching_); }

  // A kernel of a group has been launched on this stream, or captured into a graph.
  Status note(const StreamOrder& order, cuda::StreamView stream);
  // The group launches nothing more; its graphs may still be launched.
  void forget(const StreamOrder& order);

  // False: something may run. Waits for nobody; whoever launches meanwhile waits for the action.
  bool run_if_idle(const std::function<void()>& action);

 private:
  struct Use {
    cuda::StreamView stream;
    cuda::Event last;  // recorded behind the last kernel: a stream that somebody captures cannot be asked itself
  };
  struct Holders {
    std::vector<Use> uses;
    std::weak_ptr<void> graphs;  // beside the group's own reference: held by graphs
  };

  bool is_idle() const;

  std::shared_mutex launching_;

  std::mutex mutex_;  // guards these; behind launching_
  std::map<const StreamOrder*, Holders> groups_;
  std::vector<Holders> former_;  // of groups that are gone
};

}  // namespace axon::ipc
