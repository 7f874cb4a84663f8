// Lets a Python function decide where the tensors of a message go.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "rpc/core/connection.hpp"

namespace axon::rpc_python {

// The arguments of Inbound::accept.
struct Destinations {
  std::vector<Buffer> buffers;
  std::vector<Owner> owners;
};

// Calls `where` with a list of Incoming, one for each announced tensor, and with the message's values, in which these
// represent the tensors. It returns as many tensors of these shapes and types, or None in their place;
// torch_axon.runtime._memory has checked them. Tensors on the host are received into directly. Others are copied to
// when the message is unpacked. Throws the exceptions of `where`. With the GIL held.
Destinations ask_where(const pybind11::object& where, rpc::Inbound& announced, rpc::Connection& peer);

// Releases an object, on any thread, with or without the GIL. If the interpreter is shutting down, it leaks the object.
void let_go(pybind11::object object) noexcept;

}  // namespace axon::rpc_python
