#include "c10d/group_streams.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace axon::c10d_backend {

c10::Stream GroupStreams::awaiting() {
  if (!awaiting_) awaiting_ = make();
  return *awaiting_;
}

c10::Stream GroupStreams::of_link(const Link& link) {
  const auto known = links_.find(link);
  return known != links_.end() ? known->second : links_.emplace(link, make()).first->second;
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
