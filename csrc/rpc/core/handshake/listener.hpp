// Accepts runtimes: a socket, and a thread that runs any number of handshakes at a time.
//
// Ownership: owns the socket and the thread; close() ends both. Threads: counts() is for any thread, close() for one at
// a time.
//
//   auto listener = Listener::open({"127.0.0.1", 0}, secret, {}, [&](Connected connected) {
//     return add(std::move(connected));  // what to tell the peer about this end, or why it is refused
//   });
//
// The thread sleeps until a connection arrives. It drops and counts a peer that misses the deadline, cannot prove that
// it knows the secret, or sends anything else.
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
    size_t num_pending = 256;  // handshakes at a time; later connections wait in the kernel's queue
    std::chrono::milliseconds handshake_timeout{10'000};
    std::chrono::milliseconds handshake_timeout_when_full{1'000};  // while num_pending handshakes are running
  };

  using Counts = ListenerCounts;

  // Called on the listener's thread for each peer that knows the secret. It may take a lock, but must not wait for long
  // and must not close this listener. The peer receives the answer. It may be gone by then, which the handshake's
  // socket shows.
  using OnAccept = std::function<Result<EndpointInfo>(Connected)>;

  // Fails if it cannot listen at the address; starts the thread.
  // `incarnation` is that of the runtime.
  static Result<std::unique_ptr<Listener>> open(const SocketAddress& socket_address, const Secret& secret,
                                                uint64_t incarnation, const Limits& limits, OnAccept on_accept);
  ~Listener() { close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  uint16_t port() const noexcept { return port_; }
  // Key that admits to this listener, as the secret does; it is part of the listener's address. It is derived from the
  // secret and the address. So it does not reveal the secret, opens no other listener, and is the same after a restart.
  const Secret& address_key() const noexcept { return address_key_; }
  Counts counts() const;

  // Drops unfinished handshakes and ends the thread; `on_accept` is not called any more. Idempotent; one thread at a
  // time. In a forked child only the child's copies of the sockets are closed.
  void close() noexcept;

 private:
  using Clock = sync::Clock;

  struct PendingHandshake {
    FileDescriptor socket;
    Handshake handshake;
    std::vector<std::byte> unsent;
    Clock::time_point connected_at;
  };

  Listener(FileDescriptor socket, FileDescriptor wake_event, ListenerIdentity identity, const Secret& secret,
           const Limits& limits, OnAccept on_accept);

  void run();
  void wait();
  void accept_all();
  void drop_late();
  // Returns whether to keep the peer; false means that it must be dropped.
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
  FileDescriptor spare_;  // closed when no descriptor is free, so that the peer can be told the reason
  const Secret secret_;
  const Limits limits_;
  const OnAccept on_accept_;
  const uint16_t port_;
  const ListenerIdentity identity_;
  const Secret address_key_;
  const int pid_;
  // The listener's thread owns these:
  std::list<PendingHandshake> pending_;  // in order of arrival
  std::vector<pollfd> events_;           // for the wake event, the socket and the peers
  Clock::time_point next_accept_{};      // in the future after the process has run out of descriptors
  bool has_run_out_ = false;             // the shortage has been logged

  std::atomic<bool> closing_{false};
  mutable std::mutex mutex_;
  Counts counts_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace axon::rpc
