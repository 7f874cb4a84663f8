// Where runtimes are met: a socket, and a thread that holds any number of handshakes at a time.
//
//   auto listener = Listener::open({"127.0.0.1", 0}, secret, {}, [&](Connected connected) {
//     return add(std::move(connected));     // → what to tell the peer about this end, or why it is refused
//   });
//
// The thread sleeps unless somebody knocks. A peer that does not end its handshake in time, cannot prove that it knows
// the secret, or says anything else, is dropped and counted.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"
#include "rpc/core/handshake/connect.hpp"
#include "rpc/core/handshake/counts.hpp"
#include "rpc/core/handshake/handshake.hpp"

namespace axon::rpc {

class Listener {
 public:
  struct Limits {
    size_t num_pending = 256;  // handshakes at a time; who comes later waits in the kernel's queue
    std::chrono::milliseconds handshake_timeout{10'000};
    std::chrono::milliseconds handshake_timeout_when_full{1'000};  // while there are as many as that
  };

  using Counts = ListenerCounts;

  // On the listener's thread, for each peer that knows the secret: may take a lock, must not wait for long, and must
  // not close this listener. The peer is told the answer, and may have gone by then: the handshake's socket shows it.
  using OnAccept = std::function<Result<EndpointInfo>(Connected)>;

  // Fails where nobody can listen; starts the thread.
  static Result<std::unique_ptr<Listener>> open(const SocketAddress& socket_address, const Secret& secret,
                                                const Limits& limits, OnAccept on_accept);
  ~Listener() { close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  uint16_t port() const noexcept { return port_; }
  // Allows to connect to this listener as the secret does, and stands in its address: derived from the secret and the
  // address, so that it says nothing of the secret, leads to no other listener, and is the same after a restart.
  const Secret& address_key() const noexcept { return address_key_; }
  Counts counts() const;

  // Drops who has not been met, and ends the thread: `on_accept` is not called any more. Idempotent; from one thread at
  // a time. In a forked child only the child's copies of the sockets are closed.
  void close() noexcept;

 private:
  using Clock = sync::Clock;

  struct PendingHandshake {
    FileDescriptor socket;
    Handshake handshake;
    std::vector<std::byte> unsent;
    Clock::time_point came;
  };

  Listener(FileDescriptor socket, FileDescriptor wake_event, const SocketAddress& socket_address, const Secret& secret,
           const Limits& limits, OnAccept on_accept);

  void run();
  void wait();
  void accept_all();
  void drop_late();
  // False once the peer is to be dropped.
  bool serve(PendingHandshake& pending);
  bool receive_from(PendingHandshake& pending);
  bool send_to(PendingHandshake& pending);
  void accept_peer(PendingHandshake& pending);
  void count(uint64_t Counts::* what);

  FileDescriptor accept_one() noexcept;
  bool is_full() const noexcept;
  std::chrono::milliseconds handshake_timeout() const noexcept;

  FileDescriptor socket_;
  FileDescriptor wake_event_;
  FileDescriptor spare_;  // given up for a peer that finds no descriptor, so that it can be refused in words
  const Secret secret_;
  const Limits limits_;
  const OnAccept on_accept_;
  const uint16_t port_;
  const Secret address_key_;
  const int pid_;
  // The thread's own:
  std::list<PendingHandshake> pending_;  // in the order in which they came
  std::vector<pollfd> events_;           // of the wake event, the socket, and the peers
  Clock::time_point next_accept_{};      // later than now where the process has run out of descriptors
  bool has_run_out_ = false;             // and this has been logged

  std::atomic<bool> closing_{false};
  mutable std::mutex mutex_;
  Counts counts_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace axon::rpc
