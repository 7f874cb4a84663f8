// What opens on the engine beside process groups: it gets a turn in each round, and hears what happens to peers.
//
//   engine.enter(client);                            // from here on it is asked and told
//   engine.submit(item);                             // any thread: item.begin() by the progress owner, soon
//   engine.post(item);                               // progress owner: item.complete() once the token is released
//   engine.wait_for_flag(item, flag);                // progress owner: item.on_flag_set() once the flag is set
//   engine.exclusively([&] { … });                   // any thread: as progress owner
//   and once it is through, its tick() says so: a client leaves by itself.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/intrusive_list.hpp"
#include "engine/progress.hpp"
#include "engine/submissions.hpp"
#include "transport/transport.hpp"

namespace axon::engine {

// One of a client's things on its way to the progress owner, or back. In one of both queues at a time.
class Submission : public QueueNode {
 public:
  // By the progress owner.
  virtual void begin() noexcept = 0;
  // By whichever thread drives, without any lock: may submit and await other things.
  virtual void complete() noexcept = 0;

 protected:
  ~Submission() = default;
};

// What waits for a flag in memory that a device writes, unless it is unlinked before. Everything by the progress
// owner.
class FlagWaiter : public ListNode<FlagWaiter> {
 public:
  // The flag is not 0 any more; or the transport is gone.
  virtual void on_flag_set() noexcept = 0;

 protected:
  ~FlagWaiter() = default;

 private:
  friend class Engine;
  const std::atomic<uint32_t>* flag_ = nullptr;
};

// Everything here is called by the progress owner.
class Client {
 public:
  // Looks after deadlines; every few milliseconds at the most. False: the client leaves, and may be gone by then.
  virtual bool tick(sync::Clock::time_point now) noexcept = 0;
  // Whether it waits for anything from the network.
  virtual bool has_running() const noexcept = 0;
  // Whether its user has closed it. What it still looks after need not come to a good end.
  virtual bool is_closed() const noexcept = 0;
  virtual void on_peer_lost(transport::PeerId peer, const std::string& reason) noexcept = 0;
  // Nothing can be sent or received any more; what moves still moves until the transport is gone.
  virtual void on_shut_down() noexcept = 0;
  // And nothing moves: the client has left, and may be gone by its return.
  virtual void on_transport_gone() noexcept = 0;

 protected:
  ~Client() = default;
};

}  // namespace axon::engine
