// Memory of other Python objects as tensors.
#pragma once

#include <pybind11/pybind11.h>

namespace axon::rpc_python {

// A tensor over the memory of an object that has the buffer protocol, which it keeps exported; a copy where the memory
// runs backwards, is not aligned to its elements, or is reached through pointers. None for other objects. Throws
// TypeError for elements that no tensor has, and what the object raises.
pybind11::object tensor_of_buffer(const pybind11::object& value);

// Throws ValueError for a DLPack capsule that torch's import answers by ending the process: it computes the size of
// the memory in a function that must not throw, and throws there for negative strides and sizes that overflow.
void check_capsule(const pybind11::capsule& capsule);

}  // namespace axon::rpc_python
