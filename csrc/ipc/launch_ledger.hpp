// Records what on one GPU may hold kernels of this process: the streams and graphs of its groups.
//
// Some CUDA calls wait for all kernels of a device and block every launch meanwhile. A kernel that waits for a peer
// could then wait forever, since the peer may need a kernel that this process cannot launch. Such calls are therefore
// made only while none of our kernels runs or is being launched.
//
//   const LaunchLedger::Launching launching = ledger.launching();   // around each launch; launches may overlap
//   AXON_TRY(ledger.note(order, stream));                           // after the launch
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

// Belongs to one device, which must be current in every call. Thread-safe.
class LaunchLedger {
 public:
  using Launching = std::shared_lock<std::shared_mutex>;

  Launching launching() { return Launching(launching_); }

  // While the result lives, kernels that are not noted may run, so run_if_idle() does nothing.
  using Hold = std::shared_ptr<void>;
  Hold hold() {
    const Launching after_an_action = launching();
    return held_;
  }

  // Records that a kernel of a group was launched on this stream, or captured into a graph.
  Status note(const StreamOrder& order, cuda::StreamView stream);
  // Records that the group launches nothing more. Its graphs may still be launched.
  void forget(const StreamOrder& order);

  // Returns whether the action ran; false means that kernels may be running. Does not wait for kernels. Threads that
  // launch meanwhile wait for the action.
  bool run_if_idle(const std::function<void()>& action);

 private:
  struct Use {
    cuda::StreamView stream;
    cuda::Event last;  // recorded after the last kernel: a stream under capture cannot be queried itself
  };
  struct Holders {
    std::vector<Use> uses;
    std::weak_ptr<void> graphs;  // held by graphs in addition to the group's own reference
  };

  void drop_ended();
  bool is_idle() const;

  std::shared_mutex launching_;
  const std::shared_ptr<void> held_ = std::make_shared<char>();  // shared with every hold

  std::mutex mutex_;  // guards the members below; taken after launching_
  std::map<const StreamOrder*, Holders> groups_;
  std::vector<Holders> former_;  // of destroyed groups
};

}  // namespace axon::ipc
