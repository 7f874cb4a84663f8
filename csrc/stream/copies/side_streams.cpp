#include "stream/copies/side_streams.hpp"

namespace axon {

Result<SideStreams> SideStreams::create() {
  Result<Event> event = Event::create_untimed();
  if (!event.ok()) return std::move(event.status());
  SideStreams made(std::move(event).value());
  for (std::optional<Stream>& each : made.streams_) {
    Result<Stream> stream = Stream::create_urgent();
    if (!stream.ok()) return std::move(stream.status());
    each.emplace(std::move(stream).value());
  }
  return made;
}

Status SideStreams::fork(StreamView from) const {
  AXON_TRY(from.record(passed_));
  for (const std::optional<Stream>& each : streams_) AXON_TRY(each->view().wait(passed_));
  return Status();
}

Status SideStreams::join(StreamView into) const {
  for (const std::optional<Stream>& each : streams_) AXON_TRY(order(*each, into));
  return Status();
}

Status SideStreams::order(StreamView earlier, StreamView later) const {
  AXON_TRY(earlier.record(passed_));
  return later.wait(passed_);
}

}  // namespace axon
