// Words in pinned host memory (or on a device) that streams write and wait for: how a stream and the host engine meet
// without a CUDA call on the engine's side. Some 4 µs a pair, so not between kernels (BASELINES: memops).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon {

// Once the stream's earlier work is done and its results are visible, it stores `value`; pairs with an acquire load.
Status write_word(StreamView stream, std::atomic<uint32_t>* word, uint32_t value);

// The stream's later work begins once the word is `value` or later: int32(word − value) ≥ 0, so counts may wrap. A
// release store by the host is what it pairs with. Nothing else ends the wait: whoever enqueues it sees to the store.
Status wait_for_word(StreamView stream, const std::atomic<uint32_t>* word, uint32_t value);

}  // namespace axon
