// Plans for Python: transfers of many blocks without a Python object for each of them.
#pragma once

#include <pybind11/pybind11.h>

namespace axon::rpc_python {

// The types and functions of one_sided.hpp must be bound, too.
void bind_plan(pybind11::module_& module);

}  // namespace axon::rpc_python
