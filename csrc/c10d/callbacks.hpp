// Threads for what callers attach to futures: such a callback may wait for another operation (torch's PowerSGD hook
// does), which the engine's thread must be free to bring to its end.
#pragma once

#include <functional>

namespace axon::c10d_backend {

// Runs the task on a thread that has nothing to do, or on a new one; so no task waits for another. Threads without work
// end after a while. Any thread.
void run_beside_the_engine(std::function<void()> task);

}  // namespace axon::c10d_backend
