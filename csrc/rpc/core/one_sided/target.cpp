#include "rpc/core/one_sided/target.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rpc/core/connection.hpp"

namespace axon::rpc {

using transport::MessageKind;
using transport::OneSidedHeader;

static constexpr size_t kLongestText = 512;

static Status invalid(const char* what) {
  return {ErrorCode::kTransport, what};
}

static_assert(kMostListNumBytes <= kSegmentNumBytes);  // a list fits into a slot

// The transport is gone, or its completions never come.
Target::~Target() {
  while (InFlight* in_flight = in_flight_.front()) {
    in_flight->unlink();
    abandon(*in_flight);
  }
}

// ---- Grants

void Target::on_open(const OneSidedHeader& header, const transport::Payload& payload) noexcept {
  if (Status room = check_room(); !room.ok()) return done(header.number, room);
  Result<GivenGrants::Given> given = grants_.open({payload.bytes, payload.num_bytes});
  if (!given.ok()) return done(header.number, given.status());
  InFlight& in_flight = add_in_flight(header, nullptr);
  in_flight.frame = encode_grant(given.value().info);
  send(in_flight, {.kind = MessageKind::kGrant, .number = header.number, .grant = given.value().grant},
       {.data = in_flight.frame.data(), .num_bytes = in_flight.frame.size()});
}

void Target::revoke(const Region& region) noexcept {
  for (const uint32_t grant : grants_.direct_grants_of(&region)) send({.kind = MessageKind::kRevoke, .grant = grant});
}

void Target::close() noexcept {
  if (grants_.is_closed()) return;
  grants_.close();
  for (const uint32_t grant : grants_.direct_grants_of(nullptr)) send({.kind = MessageKind::kRevoke, .grant = grant});
}

void Target::fail(const Status& reason) noexcept {
  has_failed_ = true;
  grants_.fail(reason.code() == ErrorCode::kPeerLost);
  accounts_.clear();
  drop_waiting(reason);
}

// ---- Writes

void Target::on_write(const OneSidedHeader& header, const transport::Payload& payload) noexcept {
  if (const Status room = begin_write(header); !room.ok()) {
    drop(payload, room);
    return done(header.number, room);
  }
  const ListEntry block{.grant = header.grant, .num_bytes = 0, .offset = header.offset};
  Result<std::byte*> place = grants_.find(block, header.num_bytes, Access::kWrite);
  Status status = place.ok() ? check_room() : std::move(place.status());
  if (status.ok() && payload.num_bytes != header.num_bytes)
    status = invalid("a write has another length than its data");
  const bool is_staged = status.ok() && header.num_bytes != 0 && grants_.region_of(header.grant)->is_device();
  if (is_staged && header.num_bytes > kSegmentNumBytes) status = invalid("a write of a device is too long");
  if (!status.ok()) {
    drop(payload, status);
    return end_write(header, status);
  }
  if (is_staged) {
    return stage_write(header, payload,
                       {.buffers = {{.data = place.value(), .num_bytes = header.num_bytes}},
                        .device_region = grants_.region_of(header.grant)});
  }
  if (payload.rendezvous == nullptr) {
    if (payload.num_bytes != 0) std::memcpy(place.value(), payload.bytes, payload.num_bytes);
    return end_write(header, Status());
  }
  InFlight& in_flight = add_in_flight(header, grants_.region_of(header.grant));
  in_flight.is_write = true;
  const Buffer into{.data = place.value(), .num_bytes = header.num_bytes};
  auto fetched = connection_.engine().messenger().transport().fetch(payload.rendezvous, into, in_flight);
  if (fetched) on_transferred(in_flight, std::move(*fetched));
}

void Target::on_scatter(const OneSidedHeader& header, const transport::Payload& payload) noexcept {
  if (const Status room = begin_write(header); !room.ok()) return done(header.number, room);
  const std::optional<Table> table = read_table({payload.bytes, payload.num_bytes});
  if (!table || table->num_bytes != table->rest.size()) {
    return end_write(header, invalid("a list of writes is invalid"));
  }
  Result<Places> places = places_of(*table, Access::kWrite);
  if (!places.ok()) return end_write(header, places.status());
  if (places.value().device_region) {
    const Status room = check_room();
    if (!room.ok()) return end_write(header, room);
    return stage_write(header, {.bytes = table->rest.data(), .num_bytes = table->rest.size()},
                       std::move(places).value());
  }
  std::span<const std::byte> bytes = table->rest;
  for (const Buffer& place : places.value().buffers) {
    std::memcpy(place.data, bytes.data(), place.num_bytes);
    bytes = bytes.subspan(place.num_bytes);
  }
  end_write(header, Status());
}

Result<Target::Places> Target::places_of(const Table& table, Access wanted) const {
  Places places;
  const Region* region = nullptr;
  for (const ListEntry& entry : table.entries) {
    Result<std::byte*> place = grants_.find(entry, entry.num_bytes, wanted);
    if (!place.ok()) return std::move(place.status());
    const std::shared_ptr<Region>& of = grants_.region_of(entry.grant);
    if (region != nullptr && region != of.get() && (region->is_device() || of->is_device())) {
      return invalid("a list names memory of a device beside other memory");
    }
    region = of.get();
    if (of->is_device()) places.device_region = of;
    places.buffers.push_back({.data = place.value(), .num_bytes = entry.num_bytes});
  }
  return places;
}

// ---- Reads

void Target::on_read(const OneSidedHeader& header) noexcept {
  const ListEntry block{.grant = header.grant, .num_bytes = 0, .offset = header.offset};
  Result<std::byte*> place = grants_.find(block, header.num_bytes, Access::kRead);
  if (!place.ok()) return done(header.number, place.status());
  if (Status room = check_room(); !room.ok()) return done(header.number, room);
  const std::shared_ptr<Region>& region = grants_.region_of(header.grant);
  if (region->is_device() && header.num_bytes != 0) {
    if (header.num_bytes > kSegmentNumBytes) return done(header.number, invalid("a read of a device is too long"));
    return stage_read(header,
                      {.buffers = {{.data = place.value(), .num_bytes = header.num_bytes}}, .device_region = region});
  }
  InFlight& in_flight = add_in_flight(header, region);
  send(in_flight, data_for(header), {.data = place.value(), .num_bytes = header.num_bytes});
}

void Target::on_gather(const OneSidedHeader& header, const transport::Payload& payload) noexcept {
  const std::optional<Table> table = read_table({payload.bytes, payload.num_bytes});
  if (!table || !table->rest.empty() || table->num_bytes > kMostListNumBytes) {
    return done(header.number, invalid("a list of reads is invalid"));
  }
  Result<Places> places = places_of(*table, Access::kRead);
  Status status = places.ok() ? check_room() : std::move(places.status());
  if (!status.ok()) return done(header.number, status);
  if (places.value().device_region) return stage_read(header, std::move(places).value());
  InFlight& in_flight = add_in_flight(header, nullptr);
  in_flight.frame.reserve(table->num_bytes);
  for (const Buffer& place : places.value().buffers) {
    in_flight.frame.insert(in_flight.frame.end(), place.data, place.data + place.num_bytes);
  }
  send(in_flight, data_for(header), {.data = in_flight.frame.data(), .num_bytes = in_flight.frame.size()});
}

void Target::deny_long(const OneSidedHeader& header, const transport::Payload& payload) noexcept {
  drop(payload);
  done(header.number, invalid("a list or tag is longer than a message"));
}

// ---- Notifications

void Target::on_notify(const OneSidedHeader& header, const transport::Payload& payload) noexcept {
  const std::span<const std::byte> tag(payload.bytes, payload.num_bytes);
  if (tag.size() > Notifications::kLongest) return done(header.number, invalid("a tag is too long"));
  if (header.num_bytes == 0) return deliver(header.number, tag);
  if (header.transfer == 0) return done(header.number, invalid("a notification of writes names no transfer"));
  auto settled =
      accounts_.notify(header.transfer, {.request = header.number,
                                         .tag = std::string(reinterpret_cast<const char*>(tag.data()), tag.size()),
                                         .num_writes = header.num_bytes});
  settled.ok() ? settle(settled.value()) : done(header.number, settled.status());
}

void Target::on_forget(const OneSidedHeader& header) noexcept {
  using enum WriteAccounts::WasNotified;
  if (header.transfer == 0) return;
  settle(accounts_.forget(header.transfer, header.num_bytes, header.offset != 0 ? kYes : kNo));
}

void Target::end_write(const OneSidedHeader& request, const Status& status) noexcept {
  done(request.number, status);
  if (request.transfer != 0) settle(accounts_.end_write(request.transfer, status.ok()));
}

void Target::settle(const std::optional<WriteAccounts::Settled>& settled) noexcept {
  if (!settled) return;
  if (settled->is_to_deliver) return deliver(settled->request, std::as_bytes(std::span(settled->tag)));
  done(settled->request, Status(ErrorCode::kAborted, "its data were not written"));
}

// Threads that wait for a notification sleep until they are nudged.
void Target::deliver(uint32_t number, std::span<const std::byte> tag) noexcept {
  if (!exposed_->notifications.push(connection_.shared_from_this(), tag)) {
    return done(number,
                Status(ErrorCode::kResourceExhausted,
                       "its notification queue is full (limits: " + std::to_string(Notifications::kMost) +
                           " entries, and tags of " + std::to_string(Notifications::kMostNumBytes) + " bytes)"));
  }
  done(number, Status());
  connection_.engine().nudge();
}

// ---- Answers

Status Target::check_room() const {
  if (num_in_flight_ < kMostInFlight) return {};
  return {ErrorCode::kResourceExhausted, std::to_string(num_in_flight_) + " requests are being answered, the limit"};
}

Target::InFlight& Target::add_in_flight(const OneSidedHeader& request, std::shared_ptr<Region> region) {
  auto* const in_flight = new InFlight(*this);
  in_flight->header = request;
  in_flight->region = std::move(region);
  if (in_flight->region) in_flight->region->begin_in_flight();
  in_flight_.push_back(*in_flight);
  ++num_in_flight_;
  return *in_flight;
}

void Target::remove_in_flight(InFlight& in_flight) noexcept {
  in_flight.unlink();
  --num_in_flight_;
  if (in_flight.region) {
    in_flight.region->end_in_flight();
    if (in_flight.region->at_rest()) exposed_->regions.release_rested();
  }
  delete &in_flight;
}

bool Target::moves(const Region& region) noexcept {
  for (InFlight* each = in_flight_.front(); each != nullptr; each = in_flight_.next(*each)) {
    if (each->region.get() == &region) return true;
  }
  return false;
}

void Target::on_transferred(transport::Completion& self, Status status) noexcept {
  auto& in_flight = static_cast<InFlight&>(self);
  Target& target = in_flight.target;
  const OneSidedHeader request = in_flight.header;
  const bool is_write = in_flight.is_write;
  if (is_write && in_flight.staging && status.ok()) {
    return in_flight.staging->copy(TargetStaging::Direction::kToDevice);
  }
  target.remove_in_flight(in_flight);
  if (is_write && !target.has_failed_) target.end_write(request, status);
}

void Target::send(InFlight& in_flight, OneSidedHeader header, ConstBuffer payload) noexcept {
  header.key = connection_.identity().peer_key;
  auto sent = connection_.engine().messenger().transport().send(peer_, header, payload, in_flight);
  if (sent) on_transferred(in_flight, std::move(*sent));
}

void Target::send(OneSidedHeader header) noexcept {
  connection_.one_sided().initiator().send(header);
}

void Target::done(uint32_t number, const Status& status) noexcept {
  OneSidedHeader header{.kind = MessageKind::kDone, .error = status.code(), .number = number};
  if (status.ok() || num_in_flight_ >= 2 * kMostInFlight) return send(header);
  InFlight& in_flight = add_in_flight(header, nullptr);
  const auto text = std::as_bytes(std::span(status.message()).first(std::min(status.message().size(), kLongestText)));
  in_flight.frame.assign(text.begin(), text.end());
  send(in_flight, header, {.data = in_flight.frame.data(), .num_bytes = in_flight.frame.size()});
}

void Target::drop(const transport::Payload& payload, const Status& why) noexcept {
  messaging::drop_payload(connection_.engine().messenger(), payload, why);
}

void Target::on_transport_gone() noexcept {
  while (InFlight* in_flight = in_flight_.front()) {
    if (!in_flight->staging) {
      remove_in_flight(*in_flight);
      continue;
    }
    in_flight->unlink();
    --num_in_flight_;
    abandon(*in_flight);
  }
}

}  // namespace axon::rpc
