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

// kGraph: through the host, and captured. A stream under capture must not be queried.
enum class Way : uint8_t { kKernel, kHost, kGraph };

class GroupStreams {
 public:
  // The peer, the direction, the path and the tag of messages that keep their order.
  using Link = std::tuple<int, engine::Direction, Way, uint32_t>;

  // `own` is the stream of asynchronous collectives.
  explicit GroupStreams(c10::Stream own) : own_(own) {}

  c10::Stream own() const noexcept { return own_; }
  // The stream that waits for signals from peers. Made at first use, because torch has few streams.
  c10::Stream awaiting();
  // Through the host, the streams of links that have become idle serve others: torch has few streams, and a program may
  // use any number of tags. Queries streams.
  c10::Stream of_link(const Link& link);

  // Call it before of_link() for the messages of a call.
  void begin_call() noexcept { ++call_; }

  // Adds a stream to the used ones. Those of awaiting() and of_link() are added when they are made.
  void note_use(c10::Stream stream);
  // Returns each used stream once.
  const std::vector<c10::Stream>& used() const noexcept { return used_; }

 private:
  c10::Stream make();
  std::optional<c10::Stream> take_idle();

  const c10::Stream own_;
  struct LinkStream {
    c10::Stream stream;
    uint64_t last_call;
  };
  std::map<Link, LinkStream> links_;
  uint64_t call_ = 0;
  std::optional<c10::Stream> awaiting_;
  std::vector<c10::Stream> used_;
};

}  // namespace axon::c10d_backend
