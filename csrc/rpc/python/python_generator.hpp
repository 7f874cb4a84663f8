// A generator of Python that a caller has opened. All functions need the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include "rpc/core/generators/generators.hpp"
#include "rpc/python/python_runtime.hpp"

namespace axon::rpc_python {

class PythonGenerator final : public rpc::OpenGenerator {
 public:
  struct Functions {
    pybind11::object next;  // returns [count, value], or None after the last one
    PythonRuntime::Where where = PythonRuntime::Where::kHere;
    pybind11::object close;
    pybind11::object runtime;  // a weak reference to the Python Runtime
  };

  explicit PythonGenerator(Functions functions) noexcept : functions_(std::move(functions)) {}
  ~PythonGenerator() override;

  void next(rpc::Invocation& invocation) override;
  void close() noexcept override;

 private:
  Functions functions_;
};

}  // namespace axon::rpc_python
