// The owner's end of the one-sided transfers of a connection: grants access to regions, and checks every request.
//
// Requests name a grant (given_grants.hpp). Writes of more than an eager message are fetched
// straight into the region. Reads are sent straight from it. The region keeps its memory while any is in flight.
//
// A notification is delivered once all writes of its transfer have ended (write_accounts.hpp).
//
// Owned by OneSided; progress owner only.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/intrusive_list.hpp"
#include "rpc/core/one_sided/exposed.hpp"
#include "rpc/core/one_sided/given_grants.hpp"
#include "rpc/core/one_sided/target_staging.hpp"
#include "rpc/core/one_sided/write_accounts.hpp"
#include "transport/transport.hpp"

namespace axon::rpc {

class Connection;

// More than 30 methods: all requests share the bound on those in flight, and end with the connection. Requests for
// memory of devices have a source file of their own.
class Target {
 public:
  // Requests that are being answered. Twice the initiator's window: it may learn of an answer before this end does.
  static constexpr size_t kMostInFlight = 512;

  Target(Connection& connection, transport::PeerId peer, std::shared_ptr<Exposed> exposed) noexcept
      : connection_(connection),
        peer_(peer),
        exposed_(std::move(exposed)),
        grants_(connection, peer, *exposed_),
        accounts_(exposed_->num_pending_bytes) {}
  ~Target();
  Target(const Target&) = delete;
  Target& operator=(const Target&) = delete;

  void on_open(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept;
  void on_write(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept;
  void on_scatter(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept;
  void on_read(const transport::OneSidedHeader& header) noexcept;
  void on_gather(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept;
  // A request that must travel in one message waits at its sender.
  void deny_long(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept;
  void on_notify(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept;
  void on_forget(const transport::OneSidedHeader& header) noexcept;
  // The peer no longer uses a grant, of its own accord or because it was revoked.
  void on_released(const transport::OneSidedHeader& header) noexcept { grants_.release(header.grant); }

  // Asks the peer to confirm that it no longer reads the region directly.
  void revoke(const Region& region) noexcept;
  // The same for all regions, because the connection closes. All requests are denied from here on.
  void close() noexcept;
  // The connection has ended. With kPeerLost, so have the peer's transfers.
  void fail(const Status& reason) noexcept;
  void on_transport_gone() noexcept;
  // Returns whether bytes of the region are being received from the peer, or sent to it.
  bool moves(const Region& region) noexcept;
  size_t num_in_flight() const noexcept { return num_in_flight_; }
  bool is_idle() const noexcept { return num_in_flight_ == 0 && (!grants_.is_closed() || !grants_.has_direct()); }

 private:
  // Memory that the transport uses for a request or an answer.
  struct InFlight final : transport::Completion, ListNode<InFlight>, TargetStaging::Listener {
    explicit InFlight(Target& of) noexcept : transport::Completion{&Target::on_transferred}, target(of) {}
    void on_slot(TargetStaging&) noexcept override { target.on_slot(*this); }
    void on_staged(TargetStaging&, Status status) noexcept override { target.on_staged(*this, std::move(status)); }
    Target& target;
    transport::OneSidedHeader header;
    std::shared_ptr<Region> region;  // null: only the frame moves
    std::vector<std::byte> frame;
    std::unique_ptr<TargetStaging> staging;  // of memory of a device
    bool is_write = false;
  };

  // Blocks of a list, which are all of one region if that is memory of a device.
  struct Places {
    std::vector<Buffer> buffers;
    std::shared_ptr<Region> device_region;  // null: memory of the host
  };

  static void on_transferred(transport::Completion& self, Status status) noexcept;

  Result<Places> places_of(const Table& table, Access wanted) const;
  // Memory of devices passes through slots: see target_staging.hpp. A write has begun, and is within the region.
  void stage_write(const transport::OneSidedHeader& header, const transport::Payload& payload, Places places) noexcept;
  void stage_read(const transport::OneSidedHeader& header, Places places) noexcept;
  void on_slot(InFlight& in_flight) noexcept;
  void on_staged(InFlight& in_flight, Status status) noexcept;
  InFlight& add_staging(const transport::OneSidedHeader& header, Places places);
  void drop_waiting(const Status& why) noexcept;
  void abandon(InFlight& in_flight) noexcept;
  InFlight& add_in_flight(const transport::OneSidedHeader& request, std::shared_ptr<Region> region);
  void remove_in_flight(InFlight& in_flight) noexcept;
  Status check_room() const;
  // The header of the bytes that answer a read.
  static transport::OneSidedHeader data_for(const transport::OneSidedHeader& request) noexcept {
    return {.kind = transport::MessageKind::kData, .dtype = request.dtype, .number = request.number};
  }
  void send(InFlight& in_flight, transport::OneSidedHeader header, ConstBuffer payload) noexcept;
  void send(transport::OneSidedHeader header) noexcept;
  Status begin_write(const transport::OneSidedHeader& request) noexcept {
    return request.transfer != 0 ? accounts_.begin_write(request.transfer) : Status();
  }
  void end_write(const transport::OneSidedHeader& request, const Status& status) noexcept;
  void done(uint32_t number, const Status& status) noexcept;
  void settle(const std::optional<WriteAccounts::Settled>& settled) noexcept;
  void deliver(uint32_t number, std::span<const std::byte> tag) noexcept;
  void drop(const transport::Payload& payload, const Status& why = Status()) noexcept;

  Connection& connection_;
  const transport::PeerId peer_;
  const std::shared_ptr<Exposed> exposed_;  // shared with the runtime, which may be destroyed first
  GivenGrants grants_;
  IntrusiveList<InFlight> in_flight_;
  size_t num_in_flight_ = 0;
  WriteAccounts accounts_;
  bool has_failed_ = false;
};

}  // namespace axon::rpc
