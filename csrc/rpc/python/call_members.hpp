// Binds the members of a call that Python's Future uses (torch_axon/runtime/_future.py).
//
//   py::class_<T, rpc::Counted<T>> bound(module, "T");
//   add_call_members(bound, [](T& self) -> PythonCall& { return *self.call(); });
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <utility>

#include "rpc/python/python_call.hpp"
#include "rpc/python/python_runtime.hpp"

namespace axon::rpc_python {

// Returns whether the call is finished after at most this time. Drives the engine.
bool wait(PythonCall& call, double timeout_s);
// Call once: it empties the message. Raises the function's exception, or the error of the call.
pybind11::object take_answer(PythonCall& call, const pybind11::object& device);
bool is_cancelled(const PythonCall& call);

// Adds all members but `cancel`. `call_of` returns the call of an object.
template <typename T, typename CallOf>
void add_call_members(pybind11::class_<T, rpc::Counted<T>>& bound, CallOf call_of) {
  using pybind11::object;
  bound.def_property_readonly("finished", [call_of](T& self) { return call_of(self).finished(); })
      .def_property_readonly("cancelled", [call_of](T& self) { return is_cancelled(call_of(self)); })
      .def("wait", [call_of](T& self, double timeout_s) { return wait(call_of(self), timeout_s); })
      .def("claim_answer", [call_of](T& self) { return call_of(self).claim_answer(); })
      .def("take_answer", [call_of](T& self, const object& device) { return take_answer(call_of(self), device); })
      .def("unwatch", [call_of](T& self) { return call_of(self).unwatch(); })
      .def("watch", [call_of](T& self, const std::shared_ptr<CompletionQueue>& queue,
                              object waiter) { return call_of(self).watch(queue, std::move(waiter)); })
      .def("watch_served", [call_of](T& self, PythonRuntime& runtime, object waiter) {
        return call_of(self).watch(runtime.completions(), std::move(waiter));
      });
}

}  // namespace axon::rpc_python
