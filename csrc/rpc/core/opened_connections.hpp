// The connections that a runtime has opened: at most one that lives to each other runtime.
//
//   Result<std::shared_ptr<Connection>> found = opened.find_or_open(destination, deadline, [&] { return open(); });
//   opened.undo(*found.value());  // closes it, unless another call has returned it
//
// Threads: any. If several want the same connection, one of them opens it, and the others wait.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "base/status.hpp"
#include "base/sync.hpp"
#include "rpc/core/connection.hpp"
#include "rpc/core/handshake/secret.hpp"

namespace axon::rpc {

class OpenedConnections {
 public:
  using Open = std::function<Result<std::shared_ptr<Connection>>()>;

  // A runtime at the other end. Any runtime may state any incarnation, but only those that share a secret with the
  // destination have the key of its addresses.
  struct Destination {
    uint64_t incarnation = 0;
    Secret address_key;
  };

  // Calls `open` unless there is a connection that lives. Fails with kTimeout or kCancelled while another thread opens
  // it, or as its or this thread's `open` does.
  Result<std::shared_ptr<Connection>> find_or_open(Destination destination, sync::Clock::time_point deadline,
                                                   const Open& open);
  // Undoes one call of find_or_open(): closes the connection, unless another call has returned it as well.
  void undo(Connection& connection);

 private:
  struct Entry {
    Destination destination;
    std::thread::id opener{};  // no thread's: the connection is open, or has ended
    std::weak_ptr<Connection> connection{};
    size_t num_calls = 1;                                          // that have returned it
    std::shared_ptr<Status> failure = std::make_shared<Status>();  // of the opener; shared with those that wait for it

    bool is_open() const noexcept { return opener == std::thread::id(); }
  };

  Entry* find_held(const Destination& destination);

  std::mutex mutex_;                // guards entries_
  std::condition_variable opened_;  // or given up
  std::list<Entry> entries_;
};

}  // namespace axon::rpc
