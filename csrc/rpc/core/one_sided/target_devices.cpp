// The owner's requests for memory of devices.
#include <cstring>
#include <utility>

#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/target.hpp"

namespace axon::rpc {

using transport::MessageKind;
using transport::OneSidedHeader;

Target::InFlight& Target::add_staging(const OneSidedHeader& header, Places places) {
  Device& device = places.device_region->device();
  InFlight& in_flight = add_in_flight(header, std::move(places.device_region));
  in_flight.staging = std::make_unique<TargetStaging>(connection_, in_flight, device, std::move(places.buffers));
  return in_flight;
}

void Target::stage_write(const OneSidedHeader& header, const transport::Payload& payload, Places places) noexcept {
  InFlight& in_flight = add_staging(header, std::move(places));
  in_flight.is_write = true;
  TargetStaging& staging = *in_flight.staging;
  staging.rendezvous = payload.rendezvous;
  if (payload.rendezvous == nullptr) staging.bytes.assign(payload.bytes, payload.bytes + payload.num_bytes);
  staging.ask_for_slot();
}

void Target::stage_read(const OneSidedHeader& header, Places places) noexcept {
  add_staging(header, std::move(places)).staging->ask_for_slot();
}

void Target::on_slot(InFlight& in_flight) noexcept {
  TargetStaging& staging = *in_flight.staging;
  if (!in_flight.is_write) return staging.copy(TargetStaging::Direction::kFromDevice);
  if (void* const rendezvous = std::exchange(staging.rendezvous, nullptr); rendezvous != nullptr) {
    auto fetched = connection_.engine().messenger().transport().fetch(rendezvous, staging.slot(), in_flight);
    if (fetched) on_transferred(in_flight, std::move(*fetched));
    return;
  }
  std::memcpy(staging.slot().data, staging.bytes.data(), staging.bytes.size());
  staging.bytes = {};
  staging.copy(TargetStaging::Direction::kToDevice);
}

// The device has copied between the slot and the region, or the request has no slot, and its data wait at the peer.
void Target::on_staged(InFlight& in_flight, Status status) noexcept {
  if (status.code() == ErrorCode::kAborted) {  // the device may still be copying: the region never comes to rest
    in_flight.unlink();
    --num_in_flight_;
    return;
  }
  drop({.bytes = nullptr, .num_bytes = 0, .rendezvous = in_flight.staging->rendezvous}, status);
  const OneSidedHeader request = in_flight.header;
  const bool is_write = in_flight.is_write;
  if (!is_write && status.ok() && !has_failed_) {
    const Buffer slot = in_flight.staging->slot();
    return send(in_flight, data_for(request), slot);
  }
  remove_in_flight(in_flight);
  if (has_failed_) return;
  is_write ? end_write(request, status) : done(request.number, status);
}

// Requests that wait for a slot have moved nothing, and no peer awaits them any more.
void Target::drop_waiting(const Status& why) noexcept {
  for (InFlight* in_flight = in_flight_.front(); in_flight != nullptr;) {
    InFlight* const next = in_flight_.next(*in_flight);
    if (in_flight->staging && in_flight->staging->is_waiting()) {
      drop({.bytes = nullptr, .num_bytes = 0, .rendezvous = in_flight->staging->rendezvous}, why);
      remove_in_flight(*in_flight);
    }
    in_flight = next;
  }
}

// The transport is gone. What a device may still be using is leaked: the slot, and, as it never comes to rest, the
// region.
void Target::abandon(InFlight& in_flight) noexcept {
  if (!in_flight.staging) return delete &in_flight;
  in_flight.staging->abandon();
  if (in_flight.staging->is_copying()) return;
  if (in_flight.region) {
    in_flight.region->end_in_flight();
    if (in_flight.region->at_rest()) exposed_->regions.release_rested();
  }
  delete &in_flight;
}

}  // namespace axon::rpc
