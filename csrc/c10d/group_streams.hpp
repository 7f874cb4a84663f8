// The streams on which a group enqueues its work, besides its callers' own. Owned by a CudaSide; guarded by its lock,
// except for own().
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "engine/operation.hpp"

namespace axon::c10d_backend {

enum class Way : uint8_t { kKernel, kHost };

class GroupStreams {
 public:
  // The peer, the direction and the path of messages.
  using Link = std::tuple<int, engine::Direction, Way>;

  // `own` is the stream of asynchronous collectives.
  explicit GroupStreams(c10::Stream own) : own_(own) {}

  c10::Stream own() const noexcept { return own_; }
  // The stream that waits for signals from peers. Made at first use, because torch has few streams.
  c10::Stream awaiting();
  c10::Stream of_link(const Link& link);

  // Adds a stream to the used ones. Those of awaiting() and of_link() are added when they are made.
  void note_use(c10::Stream stream);
  // Returns each used stream once.
  const std::vector<c10::Stream>& used() const noexcept { return used_; }

 private:
  c10::Stream make();

  const c10::Stream own_;
  std::map<Link, c10::Stream> links_;
  std::optional<c10::Stream> awaiting_;
  std::vector<c10::Stream> used_;
};

}  // namespace axon::c10d_backend
