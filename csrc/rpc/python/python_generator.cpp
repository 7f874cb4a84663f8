#include "rpc/python/python_generator.hpp"

#include <string>
#include <utility>

#include "python/gil.hpp"
#include "rpc/python/destinations.hpp"

namespace axon::rpc_python {

namespace py = pybind11;

PythonGenerator::~PythonGenerator() {
  for (py::object* each : {&functions_.next, &functions_.close, &functions_.runtime}) let_go(std::move(*each));
}

void PythonGenerator::next(rpc::Invocation& invocation) {
  PythonInvocation held(invocation, std::string(invocation.function()), functions_.runtime);
  Arguments none{py::tuple(0), {}};
  PythonRuntime::answer(functions_.next, functions_.where, std::move(held), none);
}

void PythonGenerator::close() noexcept {
  const py::tuple none(0);
  const auto result = py::reinterpret_steal<py::object>(python::call_or_sleep(functions_.close.ptr(), none.ptr()));
  if (!result) PyErr_WriteUnraisable(functions_.close.ptr());
}

}  // namespace axon::rpc_python
