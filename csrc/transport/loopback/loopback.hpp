// Peers in one process: a network in memory that joins any number of transports, and breaks on demand.
//
//   LoopbackFabric fabric({.seed = seed, .reorder = 0.5});
//   std::unique_ptr<Transport> first = fabric.make_transport();   // "process" 0
//   std::unique_ptr<Transport> second = fabric.make_transport();  // "process" 1
//
// Threads: one thread a transport, or one for all; with one, every run of a seed is the same. The fabric outlives its
// transports. Two processes here differ in nothing from two real ones but that they share memory.
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

  // The next process, counted from 0.
  std::unique_ptr<Transport> make_transport();

  // Ends a process in the middle of whatever it does: nothing of it moves any more, and its peers hear of it. Any
  // thread.
  void kill(uint32_t process);
  bool is_dead(uint32_t process) const;

  // Nothing that is sent to it from now on gets there, as when a killed process had begun to write where all write. Any
  // thread.
  void wedge(uint32_t process);

  // How far it has come: to kill it at each of its steps, run once without faults and then once a step.
  uint64_t num_steps(uint32_t process) const;
  uint64_t num_sends() const;
  uint64_t num_fetches() const;

 private:
  friend class LoopbackTransport;

  // All of these: mutex_ is held.
  void kill_held(uint32_t process);
  void tell_loss(Mailbox& survivor, uint32_t process);

  const FaultPlan plan_;
  mutable std::mutex mutex_;       // guards all below, and what lies in the mailboxes; never held in a callback
  std::deque<Mailbox> mailboxes_;  // by process
  uint64_t num_sends_ = 0;
  uint64_t num_fetches_ = 0;
};

}  // namespace axon::transport
