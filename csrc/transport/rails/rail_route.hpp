// Describes a rail's connection for diagnostics.
#pragma once

#include <string>

#include "base/file_descriptor.hpp"

namespace axon::transport {

// Returns this host's device and the other end's address: "eth0 to 10.0.0.2". The socket must be connected.
std::string route_of(const FileDescriptor& socket);

}  // namespace axon::transport
