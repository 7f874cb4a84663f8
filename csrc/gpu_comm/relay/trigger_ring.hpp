// The ring by which kernels of this process tell the engine that graphs have been launched, and what wakes the engine.
//
//   Result<kernels::Trigger> trigger = next_trigger(engine);   // for a call that a graph captures
//   if (can_wake_at_launch(stream, engine)) …                  // once for each capture
//   wake_at_launch(stream, engine);                            // once for each stream of it
//
// Each device has one ring, in pinned memory that is never freed. Thread-safe.
#pragma once

#include "base/status.hpp"
#include "cuda/stream.hpp"
#include "engine/engine.hpp"
#include "kernels/host_slots.hpp"

namespace axon::gpu_comm {

// Returns a trigger of the current device. No other call of this process has had its id.
Result<kernels::Trigger> next_trigger(engine::Engine& engine);

// Returns whether launches of the graph that the stream is captured into can wake the engine. If not, the engine stays
// awake from now on.
bool can_wake_at_launch(cuda::StreamView capturing, engine::Engine& engine);
// Each launch of that graph wakes the engine, when it comes to this point. Nothing in the graph waits for that.
void wake_at_launch(cuda::StreamView capturing, engine::Engine& engine);

}  // namespace axon::gpu_comm
