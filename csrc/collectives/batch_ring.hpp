// The batches of a pipeline: chunk c uses batch c mod its depth. Awaiting a chunk's batch before posting to it thus
// keeps at most that many chunks in flight.
//
//   BatchRing<4> batches(view);
//   AXON_CO_TRY(co_await batches[chunk]);
//   batches[chunk].send({.peer = right}, outgoing);
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "messaging/view.hpp"

namespace axon::collectives {

template <size_t kMostDepth>
class BatchRing {
 public:
  explicit BatchRing(messaging::View& view, size_t depth = kMostDepth) noexcept
      : BatchRing(view, depth, std::make_index_sequence<kMostDepth>()) {}

  messaging::Batch& operator[](size_t chunk) noexcept { return batches_[chunk % depth_]; }

 private:
  template <size_t... kIndex>
  BatchRing(messaging::View& view, size_t depth, std::index_sequence<kIndex...>) noexcept
      : depth_(depth), batches_{((void)kIndex, messaging::Batch(view))...} {}

  const size_t depth_;
  std::array<messaging::Batch, kMostDepth> batches_;
};

}  // namespace axon::collectives
