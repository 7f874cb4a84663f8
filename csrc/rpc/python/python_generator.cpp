#include "rpc/python/python_generator.hpp"

#include <string>
#include <utility>

#include "python/signals.hpp"
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
  python::call_to_the_end(functions_.close.ptr());
}

}  // namespace axon::rpc_python
