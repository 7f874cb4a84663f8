#include "python/signals.hpp"

#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "python/gil.hpp"

namespace axon::python {

// How long later exit handlers may run, or may wait for a thread that has finished its wait.
static constexpr std::chrono::seconds kLongestHandlers{2};
static constexpr std::chrono::milliseconds kLookInterval{1};

using Thread = std::atomic<unsigned long>;
static Thread ending_thread{0};   // runs exit handlers; 0: Python is running
static Thread closing_thread{0};  // the same, once it closes all runtimes
static thread_local bool is_of_runtime = false;

static bool is_elsewhere(const Thread& thread) noexcept {
  const unsigned long ending = thread.load(std::memory_order_relaxed);
  return ending != 0 && ending != PyThread_get_thread_ident();
}

static bool ends_python_elsewhere() noexcept {
  return is_elsewhere(ending_thread);
}

void note_end_of_python() noexcept {
  ending_thread.store(PyThread_get_thread_ident(), std::memory_order_relaxed);
}

bool is_ending() noexcept {
  return ending_thread.load(std::memory_order_relaxed) != 0;
}

void note_end_of_runtimes() noexcept {
  closing_thread.store(PyThread_get_thread_ident(), std::memory_order_relaxed);
}

void note_thread_of_runtime() noexcept {
  is_of_runtime = true;
}

bool has_python() noexcept {
  return python_goes_on() && !ends_python_elsewhere();
}

static void block_calling_thread() noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kLongestHandlers;
  while (python_goes_on()) {
    if (std::chrono::steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(kLookInterval);
  }
  while (true) pause();
}

void block_if_python_ends() noexcept {
  if (ends_python_elsewhere()) [[unlikely]]
    block_calling_thread();
}

bool would_block() noexcept {
  return is_elsewhere(closing_thread) && !is_of_runtime;
}

void block_if_runtimes_end() noexcept {
  if (would_block()) [[unlikely]]
    block_calling_thread();
}

bool would_block(unsigned long thread) noexcept {
  const unsigned long closing = closing_thread.load(std::memory_order_relaxed);
  return closing != 0 && thread != 0 && closing != thread;
}

unsigned long waiting_thread() noexcept {
  return is_of_runtime ? 0 : PyThread_get_thread_ident();
}

void check_signals() {
  if (!has_python()) return;
  const GilHeld gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

// On the thread that runs Python's signal handlers: the exception of a handler that ran during a wait.
static thread_local PyObject* raised = nullptr;

// Keeps the exception that has just been raised on this thread.
static void keep_exception() noexcept {
  PyObject* type = nullptr;
  PyObject* trace = nullptr;
  PyErr_Fetch(&type, &raised, &trace);
  PyErr_NormalizeException(&type, &raised, &trace);
  if (trace != nullptr) (void)PyException_SetTraceback(raised, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
}

bool are_signals_raising() noexcept {
  if (raised != nullptr) return true;
  if (!has_python()) return false;
  const GilHeld gil;
  if (PyErr_CheckSignals() == 0) return false;
  keep_exception();
  return raised != nullptr;
}

void raise_what_signals_raised() {
  if (raised == nullptr) return;
  const GilHeld gil;
  const auto exception = pybind11::reinterpret_steal<pybind11::object>(std::exchange(raised, nullptr));
  PyErr_SetObject(pybind11::type::of(exception).ptr(), exception.ptr());
  throw pybind11::error_already_set();
}

// Returns whether Python runs signal handlers on this thread. Leaves a raised exception as it is.
static bool is_main_thread() noexcept {
  const pybind11::error_scope raised_before;
  try {
    const pybind11::object main_thread = pybind11::module_::import("threading").attr("main_thread")();
    return main_thread.attr("ident").cast<unsigned long>() == PyThread_get_thread_ident();
  } catch (const std::exception&) {
    return false;
  }
}

// Functions that are called to their end do not raise, so on the main thread an exception is a signal handler's.
void call_to_the_end(PyObject* function) noexcept {
  const pybind11::tuple none(0);
  while (true) {
    const auto result = pybind11::reinterpret_steal<pybind11::object>(call_or_sleep(function, none.ptr()));
    if (result) return;
    if (raised != nullptr || !is_main_thread()) return PyErr_WriteUnraisable(function);
    keep_exception();
  }
}

// Has the signature that Py_AddPendingCall requires.
static int raise_pending(void* exception) noexcept {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception)), static_cast<PyObject*>(exception));
  Py_DECREF(static_cast<PyObject*>(exception));
  return -1;
}

void raise_soon_what_signals_raised() noexcept {
  PyObject* const exception = std::exchange(raised, nullptr);
  // Fails if 32 calls are pending already.
  if (exception != nullptr) (void)Py_AddPendingCall(&raise_pending, exception);
}

}  // namespace axon::python
