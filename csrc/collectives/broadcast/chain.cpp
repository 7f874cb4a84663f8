// Chain: every rank passes the tensor on to the next one, chunk by chunk.
//
// n−1 steps, pipelined: the last rank receives a chunk n−2 steps after the first one. The root sends the tensor once,
// every other rank receives it once and sends it at most once, straight from and into place. "Pipelined chain" in
// Pješivac-Grbović et al., "Performance Analysis of MPI Collective Operations" (2007). Wins above 64 KiB on three
// to eight hosts. On more, its latency dominates: n−2 chunks until the last rank has the first one.
#include "collectives/algorithms.hpp"
#include "collectives/batch_ring.hpp"
#include "collectives/network_chunks.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

// Short tensors go in eager chunks, since a handshake would delay every rank of the chain (ADR 0071). Other chunks, and
// those of segments, are long enough for rails, and without them for a rendezvous, which copies less than eager
// messages do. Enough of them are on their way that none waits for its handshake.
static size_t chain_chunk_bytes(const messaging::View& view, size_t num_bytes) noexcept {
  static constexpr size_t kLongestShortTensor = size_t{1} << 20;
  static constexpr size_t kShortest = size_t{320} << 10;
  static constexpr size_t kLongest = size_t{1} << 20;
  static constexpr size_t kNumChunks = 16;
  const bool is_segment = view.size() != view.exchange().size();
  if (!is_segment && num_bytes <= kLongestShortTensor) return even_chunk_bytes(num_bytes, kLargestEagerChunk);
  return std::clamp(rounded_to_granules(num_bytes / kNumChunks), kShortest, kLongest);
}

Task<Status> broadcast::chain(messaging::View& view, const CollectiveArguments& arguments) {
  constexpr size_t kDepth = 8;
  const Buffer tensor = arguments.outputs[0];
  const int size = view.size();
  const int previous = ring_neighbour(view.rank(), -1, size);
  const int next = ring_neighbour(view.rank(), 1, size);
  const bool receives = view.rank() != arguments.root;
  const bool sends = next != arguments.root;
  const Chunks chunks(tensor.num_bytes, chain_chunk_bytes(view, tensor.num_bytes));
  BatchRing<kDepth> arrivals(view);
  BatchRing<kDepth> departures(view);

  for (size_t chunk = 0; receives && chunk < kDepth && chunks.contains(chunk); ++chunk) {
    arrivals[chunk].receive({.peer = previous, .slot = static_cast<uint32_t>(chunk)}, slice(tensor, chunks[chunk]));
  }
  for (size_t chunk = 0; chunks.contains(chunk); ++chunk) {
    AXON_CO_TRY(co_await arrivals[chunk]);
    const size_t ahead = chunk + kDepth;
    if (receives && chunks.contains(ahead)) {
      arrivals[ahead].receive({.peer = previous, .slot = static_cast<uint32_t>(ahead)}, slice(tensor, chunks[ahead]));
    }
    AXON_CO_TRY(co_await departures[chunk]);
    if (sends)
      departures[chunk].send({.peer = next, .slot = static_cast<uint32_t>(chunk)}, slice(tensor, chunks[chunk]));
  }
  for (size_t i = 0; i < kDepth; ++i) AXON_CO_TRY(co_await departures[i]);
  co_return Status();
}

}  // namespace axon::collectives
