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

void check_signals() {
  if (Py_IsInitialized() == 0 || python_is_ending()) return;
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace axon
