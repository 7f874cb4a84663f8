// Flags that streams write and wait for; a pair takes about 4 µs (BASELINES: memops). In pinned host memory they
// synchronise a stream with the host engine, without a CUDA call by the engine. In memory shared by processes they
// synchronise streams without a kernel. Thread-safe; the caller owns the flags.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::cuda {

// Stores `value` after the stream's earlier work is done and its results are visible. Pairs with an acquire load.
Status write_flag(StreamView stream, std::atomic<uint32_t>* flag, uint32_t value);

// Starts the stream's later work when the flag is `value` or later: int32(flag − value) ≥ 0, so counts may wrap around.
// Pairs with a release store by the host. Nothing else ends the wait, so the caller must ensure that store.
Status wait_for_flag(StreamView stream, const std::atomic<uint32_t>* flag, uint32_t value);

// Flags between streams, also of several processes. They are 0 or positive, and given by their device addresses. The
// calls may be captured; a replayed graph finds the flags as the capture would have.
//
// Sets the flag to 1 after the stream's earlier work is done and its results are visible.
Status set_flag(StreamView stream, uint32_t* flag);
// Starts the stream's later work when all flags are positive, and resets them to 0.
Status take_flags(StreamView stream, std::span<uint32_t* const> flags);

}  // namespace axon::cuda
