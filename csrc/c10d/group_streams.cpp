#include "c10d/group_streams.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace axon::c10d_backend {

static Way way_of(const GroupStreams::Link& link) noexcept {
  return std::get<Way>(link);
}

c10::Stream GroupStreams::awaiting() {
  if (!awaiting_) awaiting_ = make();
  return *awaiting_;
}

c10::Stream GroupStreams::of_link(const Link& link) {
  const auto known = links_.find(link);
  if (known != links_.end()) {
    known->second.last_call = call_;
    return known->second.stream;
  }
  std::optional<c10::Stream> stream;
  if (way_of(link) == Way::kHost) stream = take_idle();
  if (!stream) stream = make();
  links_.emplace(link, LinkStream{*stream, call_});
  return *stream;
}

// The messages of one call keep streams of their own.
std::optional<c10::Stream> GroupStreams::take_idle() {
  for (auto entry = links_.begin(); entry != links_.end(); ++entry) {
    const auto& [link, known] = *entry;
    if (way_of(link) != Way::kHost || known.last_call == call_ || !known.stream.query()) continue;
    const c10::Stream idle = known.stream;
    links_.erase(entry);
    return idle;
  }
  return std::nullopt;
}

void GroupStreams::note_use(c10::Stream stream) {
  if (std::find(used_.begin(), used_.end(), stream) == used_.end()) used_.push_back(stream);
}

c10::Stream GroupStreams::make() {
  const c10::Device device = own_.device();
  const c10::Stream stream =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  note_use(stream);
  return stream;
}

}  // namespace axon::c10d_backend
