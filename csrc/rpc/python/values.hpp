// Python's values into messages and out of them. All of it with Python's lock held.
#pragma once

#include <Python.h>
#include <c10/core/Device.h>
#include <pybind11/pybind11.h>

#include <memory>

#include "rpc/core/connection.hpp"

namespace axon::rpc_python {

// Appends to an open message: None, bool, int, float, str, bytes, tuples, lists and dicts of such, and tensors and what
// can be one (buffers, DLPack); docs/runtime.md has the whole list. Throws TypeError, ValueError, or OverflowError for
// integers beyond 64 bits, which say where the value is and what it was: in the answer of a function, or in the message
// to a mailbox.
void pack(rpc::Outbound& outbound, PyObject* value, const rpc::Connection& peer);
void pack_message(rpc::Outbound& outbound, PyObject* value, const rpc::Connection& peer);

// What a function is called with: a tuple, and a dict or null.
void pack_arguments(rpc::Outbound& outbound, PyObject* positional, PyObject* named, const rpc::Connection& peer);

// Where tensors are put once they have come.
struct Placement {
  enum class Kind : uint8_t {
    kLike,  // on CUDA if they were there at the sender and there is any here, else on the host
    kHost,
    kDevice,
  };
  Kind kind = Kind::kLike;
  c10::Device device{c10::kCPU};
};

// The values of a message, its tensors among them. Takes what the message has: once only. Tuples have become lists.
pybind11::object unpack(rpc::Inbound& inbound, const Placement& placement,
                        const std::shared_ptr<rpc::Connection>& peer);

// The values of a message whose tensors have not come yet, with these in their places. Takes nothing.
pybind11::object unpack_announced(rpc::Inbound& inbound, const pybind11::list& placeholders,
                                  const std::shared_ptr<rpc::Connection>& peer);

struct Arguments {
  pybind11::tuple positional;
  pybind11::object named;  // null where there are none
};
Arguments unpack_arguments(rpc::Inbound& inbound, const Placement& placement,
                           const std::shared_ptr<rpc::Connection>& peer);

}  // namespace axon::rpc_python
