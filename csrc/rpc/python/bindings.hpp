// The runtime's part of torch_axon._C.
#pragma once

#include <pybind11/pybind11.h>

namespace axon::rpc_python {

void bind_runtime(pybind11::module_& module);

}  // namespace axon::rpc_python
