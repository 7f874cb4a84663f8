// Words that streams write and wait for, some 4 µs a pair (BASELINES: memops): in pinned host memory, how a stream and
// the host engine meet without a CUDA call on the engine's side; in memory that processes share, how streams meet
// without a kernel.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::cuda {

// Once the stream's earlier work is done and its results are visible, it stores `value`; pairs with an acquire load.
Status write_word(StreamView stream, std::atomic<uint32_t>* word, uint32_t value);

// The stream's later work begins once the word is `value` or later: int32(word − value) ≥ 0, so counts may wrap. A
// release store by the host is what it pairs with. Nothing else ends the wait: whoever enqueues it sees to the store.
Status wait_for_word(StreamView stream, const std::atomic<uint32_t>* word, uint32_t value);

// Between streams, of several processes too: words that are 0 or positive, at their addresses on the device. They may
// be captured, and a replayed graph finds them as the capture would have.
//
// Once the stream's earlier work is done and its results are visible, the word is 1.
Status set_word(StreamView stream, uint32_t* word);
// The stream's later work begins once all of them are positive; then they are 0 again.
Status take_words(StreamView stream, std::span<uint32_t* const> words);

}  // namespace axon::cuda
