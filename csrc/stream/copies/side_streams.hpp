// The streams of a group on which copy engines push, beside its callers'. Of each round there are two, which take the
// pieces in turn: the gap behind one's copy is filled by the other's.
//
//   AXON_TRY(streams.fork(stream));   // behind what the caller's stream holds
//   … streams.pushing(round, number) …
//   AXON_TRY(streams.join(stream));   // which goes on behind all of it
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "cuda/stream.hpp"
#include "stream/copies/schedule.hpp"

namespace axon {

class SideStreams {
 public:
  // On the current device.
  static Result<SideStreams> create();

  Status fork(StreamView from) const;
  Status join(StreamView into) const;
  Status order(StreamView earlier, StreamView later) const;

  StreamView pushing(uint32_t round, uint32_t number) const noexcept {
    return *streams_[round * kOfRound + number % kOfRound];
  }

 private:
  static constexpr uint32_t kOfRound = 2;

  explicit SideStreams(Event event) noexcept : passed_(std::move(event)) {}

  std::array<std::optional<Stream>, kNumRounds * kOfRound> streams_;
  Event passed_;  // a wait is for what was recorded before it, so one does
};

}  // namespace axon
