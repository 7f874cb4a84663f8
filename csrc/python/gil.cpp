#include "python/gil.hpp"

#include <unistd.h>

namespace axon::python {

bool python_goes_on() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() != 0 && Py_IsFinalizing() == 0;
#else
  return Py_IsInitialized() != 0 && _Py_IsFinalizing() == 0;
#endif
}

template <typename Ask>
static void or_sleep(Ask ask) noexcept {
  try {
    ask();
  } catch (...) {  // the thread is being unwound, no exception was thrown
    while (true) pause();
  }
}

PyObject* call_or_sleep(PyObject* function, PyObject* arguments, PyObject* named) noexcept {
  PyObject* result = nullptr;
  or_sleep([&] { result = PyObject_Call(function, arguments, named); });
  return result;
}

GilReleased::~GilReleased() {
  or_sleep([this] { PyEval_RestoreThread(thread_); });
}

GilHeld::GilHeld() noexcept {
  or_sleep([this] { before_ = PyGILState_Ensure(); });
}

}  // namespace axon::python
