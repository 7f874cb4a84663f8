// The ring by which kernels of this process tell the engine that graphs have been launched, and what wakes the engine.
//
//   Result<kernels::Trigger> trigger = next_trigger(engine);   // for a call that a graph captures
//   wake_at_launch(stream, engine);                            // once for each capture and stream
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

// Each launch of the graph that the stream is captured into wakes the engine, when it comes to this point. Nothing in
// the graph waits for that. Where a graph cannot do so, the engine stays awake.
void wake_at_launch(cuda::StreamView capturing, engine::Engine& engine);

}  // namespace axon::gpu_comm
