// Memory of Python objects, for transfers that read and write it while Python code goes on.
#pragma once

#include <c10/core/Device.h>
#include <pybind11/pybind11.h>

#include <optional>

#include "base/data_type.hpp"
#include "memory/buffer.hpp"
#include "memory/owner.hpp"

namespace axon::rpc_python {

struct LocalMemory {
  Buffer buffer;
  Owner owner;                // keeps the memory; may be destroyed on any thread
  c10::DeviceIndex gpu = -1;  // −1: memory of the host
  // Slow links may compress the memory as elements of this type.
  DataType dtype = DataType::kByte;
};

// The type as whose elements slow links may compress several memories: bytes, if their types differ.
class CommonType {
 public:
  void add(DataType type) noexcept { type_ = type_.value_or(type) == type ? type : DataType::kByte; }
  DataType get() const noexcept { return type_.value_or(DataType::kByte); }

 private:
  std::optional<DataType> type_;
};

enum class Use : uint8_t { kRead, kWritten };

// Returns the memory of a contiguous tensor on the CPU or on CUDA, or of an object with the buffer protocol. `what`
// begins the errors: "read: into". Throws TypeError for other objects; ValueError for tensors elsewhere, that are not
// contiguous, or have no memory, and for read-only memory that is to be written.
LocalMemory local_memory(pybind11::handle object, Use use, const char* what);

// The same, for memory that this process itself reads: it is the host's.
LocalMemory host_memory(pybind11::handle object, Use use, const char* what);

}  // namespace axon::rpc_python
