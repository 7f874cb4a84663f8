// The transports on which the conformance suite runs.
#pragma once

#include <memory>
#include <ostream>
#include <string>

#include "transport/transport.hpp"

namespace axon::transport {

// Connects transports of one kind; must outlive them.
class Network {
 public:
  virtual ~Network() = default;
  virtual std::unique_ptr<Transport> make_transport() = 0;
  virtual bool same_host() const noexcept { return true; }
};

struct NetworkKind {
  const char* name;
  std::unique_ptr<Network> (*make)();

  friend std::ostream& operator<<(std::ostream& out, const NetworkKind& kind) { return out << kind.name; }
};

extern const NetworkKind kLoopback;
extern const NetworkKind kLoopbackWithFaults;  // every send is pending or late, and messages arrive in any order
extern const NetworkKind kUcxSharedMemory;
extern const NetworkKind kUcxTcp;
extern const NetworkKind kRails;            // above the loopback, compressing all that gets shorter
extern const NetworkKind kRailsWithFaults;  // above the loopback with faults
extern const NetworkKind kRailsTcp;         // above UCX over TCP
extern const NetworkKind kSockets;          // all messages over one rail, which the progress owner serves
extern const NetworkKind kSocketsAndRails;  // the same, and rails for long messages at the same port
extern const NetworkKind kPreferred;        // UCX over TCP, preferred to sockets
extern const NetworkKind kRings;            // above rails and UCX over shared memory, as in a process's engine
extern const NetworkKind kRingsCopies;      // above the loopback; only the rings' memory is read

}  // namespace axon::transport
