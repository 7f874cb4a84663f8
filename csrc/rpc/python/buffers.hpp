// Turns the memory of other Python objects into tensors.
#pragma once

#include <pybind11/pybind11.h>

namespace axon::rpc_python {

// Returns a tensor over the memory of an object with the buffer protocol, and keeps it exported. It is a copy if the
// memory has negative strides, is not aligned to its elements, or is reached through pointers. Returns None for other
// objects. Throws TypeError for element types without a tensor type, and the object's own exceptions.
pybind11::object tensor_of_buffer(const pybind11::object& value);

// Throws ValueError for a DLPack capsule that would make torch's import end the process. The import computes the size
// of the memory in a noexcept function, and throws there for negative strides and for sizes that overflow.
void check_capsule(const pybind11::capsule& capsule);

}  // namespace axon::rpc_python
