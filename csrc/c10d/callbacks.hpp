// Threads for the callbacks that callers attach to futures. Such a callback may wait for another operation (torch's
// PowerSGD hook does), which the engine's thread must remain free to finish.
#pragma once

#include <functional>

namespace axon::c10d_backend {

// Runs the task on an idle thread, or on a new one, so no task waits for another. Idle threads end after a while. Any
// thread.
void run_beside_the_engine(std::function<void()> task);

}  // namespace axon::c10d_backend
