// Python's signal handlers and its end, for threads that wait in C++.
#pragma once

namespace axon {

// Whether Python's lock can be taken.
bool has_python() noexcept;

// The calling thread runs Python's exit handlers.
void note_end_of_python() noexcept;

// For a wait of another thread that goes back to Python then: stays here for ever once Python ends. Before 3.14 Python
// ends a thread that asks for its lock so late, by unwinding through torch's bindings, which std::terminate answers.
void stay_behind_if_python_ends() noexcept;

// Runs the handlers of signals that have come, if this is the thread that Python runs them on. Throws what they raise:
// KeyboardInterrupt, usually. Takes Python's lock.
void check_signals();

}  // namespace axon
