// A relay between the two ends of TCP connections on the loopback interface, which tests may disturb.
//
//   Relay relay(port_of_listener);    // connect to relay.port()
//   relay.cut_one_after(1000);
//
// Its thread forwards both ways. Any thread calls the functions.
#pragma once

#include <netinet/in.h>

#include <array>
#include <atomic>
#include <list>
#include <thread>

#include "base/file_descriptor.hpp"

namespace axon::transport {

class Relay {
 public:
  // Forwards to this port. Accepts connections at an IPv4 address of this host, or at all of them.
  explicit Relay(uint16_t to, uint32_t at = INADDR_LOOPBACK);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  uint16_t port() const noexcept { return port_; }
  // Bytes of connectors that were forwarded, or are being forwarded.
  uint64_t num_bytes() const noexcept { return num_bytes_.load(); }

  // Resets the connection that forwards the last of this many more bytes of connectors.
  void cut_one_after(uint64_t num_bytes) noexcept { num_until_cut_.store(static_cast<int64_t>(num_bytes)); }
  // Resets all connections.
  void cut_all() noexcept { cuts_all_.store(true); }
  // Resets all connections and refuses further ones.
  void close() noexcept { closes_.store(true); }
  // Forwards nothing until go_on().
  void hold() noexcept { holds_.store(true); }
  void go_on() noexcept { holds_.store(false); }

 private:
  struct Connection {
    FileDescriptor from;
    FileDescriptor to;
  };

  void run();
  void accept_one();
  // Return false if the connection is to be reset.
  bool forward(Connection& connection);
  bool move(int from, int to, bool is_from_connector);
  static void reset(Connection& connection);

  const uint16_t to_;
  FileDescriptor listener_;
  uint16_t port_ = 0;
  std::list<Connection> connections_;
  std::atomic<uint64_t> num_bytes_{0};
  std::atomic<int64_t> num_until_cut_{-1};
  std::atomic<bool> cuts_all_{false};
  std::atomic<bool> closes_{false};
  std::atomic<bool> holds_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace axon::transport
