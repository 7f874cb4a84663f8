// The batches of a pipeline: chunk c uses batch c mod kDepth, so awaiting a chunk's batch before posting to it keeps at
// most kDepth chunks in flight.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "transport/exchange.hpp"

namespace axon {

template <size_t kDepth>
class BatchRing {
 public:
  explicit BatchRing(Exchange& exchange) noexcept : BatchRing(exchange, std::make_index_sequence<kDepth>()) {}

  Batch& operator[](size_t chunk) noexcept { return batches_[chunk % kDepth]; }

 private:
  template <size_t... kIndex>
  BatchRing(Exchange& exchange, std::index_sequence<kIndex...>) noexcept
      : batches_{((void)kIndex, Batch(exchange))...} {}

  std::array<Batch, kDepth> batches_;
};

}  // namespace axon
