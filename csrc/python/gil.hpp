// Scoped guards that take and release the GIL.
//
//    const GilReleased no_gil;   // the caller held it
//    const GilHeld gil;          // in any thread
//
// Before 3.14, Python ends a thread that takes the GIL after the interpreter's end by unwinding it. pybind11's own
// guards then call std::terminate. With these guards, such a thread sleeps until the process exits, as in 3.14.
#pragma once

#include <Python.h>

#include <optional>

namespace axon::python {

// Returns whether the interpreter is running and not shutting down.
bool python_goes_on() noexcept;

// Calls PyObject_Call(). Python code may release the GIL at any time, and take it again after Python's end. That would
// unwind the frames above without the GIL, and they would drop their objects. Here the thread sleeps instead and keeps
// its objects.
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

// For any thread, whether or not it holds the GIL: any thread may run a destructor as the last owner.
class GilReleasedIfHeld {
 public:
  GilReleasedIfHeld() noexcept {
    if (python_goes_on() && PyGILState_Check() != 0) released_.emplace();
  }

 private:
  std::optional<GilReleased> released_;
};

// For any thread, whether or not it holds the GIL.
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
