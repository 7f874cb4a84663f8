#include "rpc/core/one_sided/target_staging.hpp"

#include "rpc/core/connection.hpp"

namespace axon::rpc {

TargetStaging::TargetStaging(const Connection& connection, Listener& listener, Device& device,
                             std::vector<Buffer> places) noexcept
    : DeviceCopy(connection.engine()),
      Waiter(connection.engine(), connection.peer(), device),
      listener_(listener),
      device_(device),
      places_(std::move(places)) {}

void TargetStaging::on_no_slot(const Status& why) noexcept {
  listener_.on_staged(*this, Status(why.code(), "the process of the region " + why.message()));
}

uint64_t TargetStaging::num_bytes() const noexcept {
  uint64_t sum = 0;
  for (const Buffer& place : places_) sum += place.num_bytes;
  return sum;
}

void TargetStaging::copy(Direction direction) noexcept {
  is_copying_ = true;
  std::byte* in_slot = slot_->data;
  blocks.reserve(places_.size());
  for (const Buffer& place : places_) {
    blocks.push_back(direction == Direction::kToDevice
                         ? CopiedBlock{.source = in_slot, .target = place.data, .num_bytes = place.num_bytes}
                         : CopiedBlock{.source = place.data, .target = in_slot, .num_bytes = place.num_bytes});
    in_slot += place.num_bytes;
  }
  device_.start(*this);
}

}  // namespace axon::rpc
