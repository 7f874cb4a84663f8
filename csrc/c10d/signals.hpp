// Python's signal handlers, for threads that wait in C++.
#pragma once

namespace axon {

// Whether Python's lock can be taken.
bool has_python() noexcept;

// Runs the handlers of signals that have come, if this is the thread that Python runs them on. Throws what they raise:
// KeyboardInterrupt, usually. Takes Python's lock.
void check_signals();

}  // namespace axon
