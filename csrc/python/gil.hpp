// Python's lock, taken and given back for a scope.
//
// Before 3.14 Python ends a thread that asks for the lock once the interpreter ends, by unwinding it, and pybind11's
// own guards answer with std::terminate. With these such a thread sleeps until the process is gone, as 3.14 has it.
#pragma once

#include <Python.h>

#include <optional>

namespace axon::python {

// Whether the interpreter is there, and not on its way out.
bool python_goes_on() noexcept;

// PyObject_Call(). Python's code may give the lock away at any time, and then be where a thread asks for it too late:
// the frames above would be unwound without the lock, and drop their objects. Whatever they hold, they hold on to.
PyObject* call_or_sleep(PyObject* function, PyObject* arguments, PyObject* named = nullptr) noexcept;

class GilReleased {
 public:
  GilReleased() noexcept : thread_(PyEval_SaveThread()) {}
  ~GilReleased();
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const thread_;
};

// From any thread, whether it holds the lock or not: for destructors, which whoever is the last owner calls.
class GilReleasedIfHeld {
 public:
  GilReleasedIfHeld() noexcept {
    if (python_goes_on() && PyGILState_Check() != 0) released_.emplace();
  }

 private:
  std::optional<GilReleased> released_;
};

// From any thread, whether it holds the lock or not.
class GilHeld {
 public:
  GilHeld() noexcept;
  ~GilHeld() { PyGILState_Release(before_); }
  GilHeld(const GilHeld&) = delete;
  GilHeld& operator=(const GilHeld&) = delete;

 private:
  PyGILState_STATE before_;
};

}  // namespace axon::python
