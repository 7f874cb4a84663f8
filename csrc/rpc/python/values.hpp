// Packs Python values into messages and unpacks them. All functions need the GIL.
#pragma once

#include <Python.h>
#include <c10/core/Device.h>
#include <pybind11/pybind11.h>

#include <memory>

#include "rpc/core/connection.hpp"

namespace axon::rpc_python {

inline constexpr int kDeepest = 64;  // levels of nested values

// Appends to an open message: None, bool, int, float, str, bytes, tensors and buffers or DLPack objects, and tuples,
// lists and dicts of these. docs/runtime.md has the whole list. Throws TypeError, ValueError, or OverflowError for
// integers beyond 64 bits. The errors tell what the value was and where it is: in the answer of a function, or in the
// message to a mailbox.
void pack(rpc::Outbound& outbound, PyObject* value, const rpc::Connection& peer);
void pack_message(rpc::Outbound& outbound, PyObject* value, const rpc::Connection& peer);

// Appends the arguments of a function: a tuple, and a dict or null.
void pack_arguments(rpc::Outbound& outbound, PyObject* positional, PyObject* named, const rpc::Connection& peer);

// Device of received tensors.
struct Placement {
  enum class Kind : uint8_t {
    kLike,  // on CUDA if the sender's tensor was, and CUDA is available here; otherwise on the host
    kHost,
    kDevice,
  };
  Kind kind = Kind::kLike;
  c10::Device device{c10::kCPU};
};
// Returns the placement on a torch.device, or kLike for None.
Placement placement_of(const pybind11::object& device);

// Returns the values of a message, with its tensors. It consumes the message: call it once. Tuples become lists.
pybind11::object unpack(rpc::Inbound& inbound, const Placement& placement, rpc::Connection& peer);

// Returns the values of a message whose tensors have not arrived, with placeholders for them. Consumes nothing.
pybind11::object unpack_announced(rpc::Inbound& inbound, const pybind11::list& placeholders, rpc::Connection& peer);

// Returns the value of a message to a mailbox, see rpc::MailHeader.
pybind11::object unpack_message(rpc::Inbound& inbound, const Placement& placement, rpc::Connection& peer);

struct Arguments {
  pybind11::tuple positional;
  pybind11::object named;  // null if there are no named arguments
};
Arguments unpack_arguments(rpc::Inbound& inbound, const Placement& placement, rpc::Connection& peer);

}  // namespace axon::rpc_python
