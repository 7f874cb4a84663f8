// Host memory of Python objects, for transfers that read and write it while Python code goes on.
#pragma once

#include <pybind11/pybind11.h>

#include "memory/buffer.hpp"
#include "memory/owner.hpp"

namespace axon::rpc_python {

struct HostMemory {
  Buffer buffer;
  Owner owner;  // keeps the memory; may be destroyed on any thread
};

enum class Use : uint8_t { kRead, kWritten };

// Returns the memory of a contiguous tensor on the CPU, or of an object with the buffer protocol. `what` begins the
// errors: "read: into". Throws TypeError for other objects; ValueError for tensors elsewhere, that are not contiguous,
// or have no memory, and for read-only memory that is to be written.
HostMemory host_memory(pybind11::handle object, Use use, const char* what);

}  // namespace axon::rpc_python
