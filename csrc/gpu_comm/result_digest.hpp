// Gives the result of a collective on a device to the group's check (engine/result_check.hpp).
#pragma once

#include <memory>

#include "base/status.hpp"
#include "cuda/stream.hpp"
#include "engine/engine.hpp"
#include "engine/operation.hpp"
#include "engine/result_check.hpp"

namespace axon::gpu_comm {

// Enqueues a digest of the operation's outputs on the stream, which must not be under capture, and notes it once the
// stream has passed it. All ranks call this for the same collectives in the same order. One thread at a time.
Status check_result(engine::Engine& engine, std::shared_ptr<engine::ResultCheck> check,
                    const engine::Operation& operation, cuda::StreamView stream);

}  // namespace axon::gpu_comm
