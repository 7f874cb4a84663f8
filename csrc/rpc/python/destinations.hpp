// Where the tensors of a message go, by the word of a function of Python's.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <vector>

#include "rpc/core/connection.hpp"

namespace axon::rpc_python {

// What Inbound::accept takes.
struct Destinations {
  std::vector<Buffer> buffers;
  std::vector<Owner> owners;
};

// Asks `where`, which is called with a list of Incoming, one for each tensor that is announced, and with the message's
// values, in which these stand for the tensors. It returns as many tensors of these shapes and types, or None in their
// place; torch_axon.runtime._memory has checked them. Those on the host are received into; the others are copied to
// when the message is unpacked. Throws what it raises. With Python's lock held.
Destinations ask_where(const pybind11::object& where, rpc::Inbound& announced,
                       const std::shared_ptr<rpc::Connection>& peer);

// Lets go of an object, on any thread, with Python's lock or without; leaves it behind where Python is ending.
void let_go(pybind11::object object) noexcept;

}  // namespace axon::rpc_python
