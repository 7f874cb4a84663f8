// Python's signal handlers and shutdown, for threads that wait in C++.
#pragma once

#include <Python.h>

namespace axon::python {

// Returns whether the GIL can be taken.
bool has_python() noexcept;

// Notes that the calling thread runs Python's exit handlers.
void note_end_of_python() noexcept;
bool is_ending() noexcept;
// Notes that it closes all runtimes, which happens first.
void note_end_of_runtimes() noexcept;
// Notes that the calling thread belongs to a runtime whose closing waits for it: its waits return even if Python ends.
void note_thread_of_runtime() noexcept;

// For a wait that returns to Python: blocks the calling thread for ever if another thread is ending Python. Before
// 3.14, Python would unwind a thread that takes the GIL so late through torch's bindings, which call std::terminate.
void block_if_python_ends() noexcept;
// The same for waits on runtimes.
void block_if_runtimes_end() noexcept;
// Returns whether block_if_runtimes_end() would block the calling thread.
bool would_block() noexcept;
// Returns whether it would block another thread, given that thread's waiting_thread(), which is 0 for a runtime's own.
bool would_block(unsigned long thread) noexcept;
unsigned long waiting_thread() noexcept;

// Runs the handlers of pending signals, if Python runs handlers on this thread. Throws their exception, usually
// KeyboardInterrupt. Takes the GIL.
void check_signals();

// The check of base/interrupts.hpp. Keeps a handler's exception, which is raised when the wait returns to Python.
bool are_signals_raising() noexcept;
// Raises the kept exception, if any. Takes the GIL.
void raise_what_signals_raised();
// The same for callers that must not throw: the main thread raises it soon after.
void raise_soon_what_signals_raised() noexcept;

// Calls a function that has no arguments and must run to its end, for example because it wakes a thread. If a signal
// handler raises in it, the function is called again, and the exception is kept as by are_signals_raising(). Other
// exceptions are reported as unraisable. With the GIL held.
void call_to_the_end(PyObject* function) noexcept;

}  // namespace axon::python
