// Python's view of status pages: torch_axon._C.read_status.
#pragma once

#include <pybind11/pybind11.h>

namespace axon {

void bind_status(pybind11::module_& module);

}  // namespace axon
