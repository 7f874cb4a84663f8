// Python's signal handlers and its end, for threads that wait in C++.
#pragma once

namespace axon::python {

// Whether Python's lock can be taken.
bool has_python() noexcept;

// The calling thread runs Python's exit handlers.
void note_end_of_python() noexcept;
// It closes all runtimes, which comes first.
void note_end_of_runtimes() noexcept;
// The calling thread is one of a runtime's own, which its closing waits for: its waits return although Python ends.
void note_thread_of_runtime() noexcept;

// For a wait of another thread that goes back to Python then: stays here for ever once Python ends. Before 3.14 Python
// ends a thread that asks for its lock so late, by unwinding through torch's bindings, which std::terminate answers.
void stay_behind_if_python_ends() noexcept;
// The same for waits of runtimes.
void stay_behind_if_runtimes_end() noexcept;
// Whether the calling thread would.
bool stays_behind() noexcept;
// Whether another thread would, by what waiting_thread() has returned there: 0 for one of a runtime's own.
bool stays_behind(unsigned long thread) noexcept;
unsigned long waiting_thread() noexcept;

// Runs the handlers of signals that have come, if this is the thread that Python runs them on. Throws what they raise:
// KeyboardInterrupt, usually. Takes Python's lock.
void check_signals();

// The check of base/interrupts.hpp. What a handler raises is kept, to be raised where the wait goes back to Python.
bool are_signals_raising() noexcept;
// Raises it, if there is any. Takes Python's lock.
void raise_what_signals_raised();
// The same from where nothing may be thrown: soon after, by the main thread.
void raise_soon_what_signals_raised() noexcept;

}  // namespace axon::python
