#include "c10d/signals.hpp"

#include <torch/csrc/utils/pybind.h>

namespace axon {

static bool python_is_ending() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

bool has_python() noexcept {
  return Py_IsInitialized() != 0 && !python_is_ending();
}

void check_signals() {
  if (!has_python()) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace axon
