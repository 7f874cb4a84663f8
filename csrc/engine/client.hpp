// Interface for users of the engine: process groups and runtimes. A client has a tick() and is notified of lost peers.
//
//   engine.enter(client);               // from here on the engine calls the client
//   engine.submit(item);                // any thread: the progress owner calls item.begin() soon
//   engine.finish_later(item);          // progress owner: item.finish() runs after the coroutines that can continue
//   engine.post(item);                  // progress owner: item.complete() runs after the token is released
//   engine.wait_for_flag(item, flag);   // progress owner: item.on_flag_set() runs after the flag is set
//   engine.exclusively([&] { … });      // any thread: runs the function as progress owner
//
// The client owns itself. It leaves by returning false from tick().
#pragma once

#include <string>

#include "engine/flag_waiters.hpp"
#include "engine/progress.hpp"
#include "engine/submissions.hpp"
#include "transport/transport.hpp"

namespace axon::engine {

// An item on its way from a client to the progress owner, or back. It is in one queue at a time.
class Submission : public QueueNode {
 public:
  // Called by the progress owner.
  virtual void begin() noexcept = 0;
  // Called by the progress owner, outside any coroutine: may destroy the item's own coroutine, and fail other items.
  virtual void finish() noexcept {}
  // Called by the thread that drives, without any lock: may submit and await other items.
  virtual void complete() noexcept = 0;

 protected:
  ~Submission() = default;
};

// All methods are called by the progress owner.
class Client {
 public:
  // Checks deadlines; called at most every few milliseconds. Returns false if the client leaves; it may be freed by
  // then.
  virtual bool tick(sync::Clock::time_point now) noexcept = 0;
  // Returns whether the client waits for anything from the network.
  virtual bool has_running() const noexcept = 0;
  // Returns whether its user has closed it. Its remaining operations need not complete successfully.
  virtual bool is_closed() const noexcept = 0;
  virtual void on_peer_lost(transport::PeerId peer, const std::string& reason) noexcept = 0;
  // Nothing can be sent or received any more. Transfers in progress continue until the transport is closed.
  virtual void on_shut_down() noexcept = 0;
  // All transfers have stopped. The client has left, and may be freed when this returns.
  virtual void on_transport_gone() noexcept = 0;

 protected:
  ~Client() = default;
};

}  // namespace axon::engine
