// A network in memory that connects any number of transports in one process, and injects faults on demand.
//
//   LoopbackFabric fabric({.seed = seed, .reorder = 0.5});
//   std::unique_ptr<Transport> first = fabric.make_transport();   // "process" 0
//   std::unique_ptr<Transport> second = fabric.make_transport();  // "process" 1
//
// Threads: one thread per transport, or one for all. With one thread, every run with the same seed is identical. The
// fabric must outlive its transports. Processes here differ from real ones only in that they share memory.
#pragma once

#include <deque>
#include <memory>
#include <mutex>

#include "transport/loopback/fault_plan.hpp"
#include "transport/loopback/mailbox.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

class LoopbackFabric {
 public:
  explicit LoopbackFabric(FaultPlan plan = {});
  ~LoopbackFabric();
  LoopbackFabric(const LoopbackFabric&) = delete;
  LoopbackFabric& operator=(const LoopbackFabric&) = delete;

  // Adds the next process, numbered from 0.
  std::unique_ptr<Transport> make_transport();

  // Kills a process in the middle of whatever it does: it moves nothing any more, and its peers are notified. Any
  // thread.
  void kill(uint32_t process);
  bool is_dead(uint32_t process) const;

  // Wedges a process's receive queue: no message sent to it from now on arrives, as when a killed process had begun to
  // write into the shared queue. Any thread.
  void wedge(uint32_t process);

  // The number of steps that a process has taken. To kill it at each of its steps, run once without faults, then once
  // per step.
  uint64_t num_steps(uint32_t process) const;
  // The number of processes that are connected with this one: a message was sent, or one of the two watches the other.
  // Processes of one host always are.
  size_t num_connections(uint32_t process) const;
  uint64_t num_sends() const;
  uint64_t num_fetches() const;

 private:
  friend class LoopbackTransport;

  // The caller holds mutex_.
  void kill_held(uint32_t process);
  void tell_loss(Mailbox& survivor, uint32_t process);

  const FaultPlan plan_;
  mutable std::mutex mutex_;  // guards the members below and the content of the mailboxes; never held in a callback
  std::deque<Mailbox> mailboxes_;  // by process
  uint64_t num_sends_ = 0;
  uint64_t num_fetches_ = 0;
  bool has_corrupted_ = false;
};

}  // namespace axon::transport
