// The initiator's end of the one-sided transfers of a connection: opens handles, and reads and writes what they grant.
//
// A request occupies a slot until the owner has answered it; further requests wait for one. Direct copies need none:
// they are done in steps by the progress owner.
//
// Owned by OneSided; progress owner only.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/intrusive_list.hpp"
#include "rpc/core/one_sided/direct_copy.hpp"
#include "rpc/core/one_sided/opened_grants.hpp"
#include "rpc/core/one_sided/request_slots.hpp"
#include "rpc/core/one_sided/transfer.hpp"

namespace axon::rpc {

// More than 30 methods: transfers, requests, answers and grants end with the connection, and each affects the others.
// Direct copies and grants have source files of their own.
class Initiator {
 public:
  static constexpr uint32_t kWindow = RequestSlots::kWindow;
  static constexpr size_t kMostTransfers = 65'536;  // of one connection, at a time
  static constexpr size_t kMostNotifying = 1024;    // transfers that write towards a notification, at a time
  static constexpr size_t kStep = size_t{1} << 20;  // bytes that are copied directly in one step

  Initiator(Connection& connection, transport::PeerId peer) noexcept;
  Initiator(const Initiator&) = delete;
  Initiator& operator=(const Initiator&) = delete;

  void begin(Transfer& transfer) noexcept;
  // Continues direct copies.
  void resume(Transfer& transfer) noexcept;
  void cancel(Transfer& transfer) noexcept;

  void on_grant(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept;
  void on_data(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept;
  void on_done(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept;
  void on_revoke(const transport::OneSidedHeader& header) noexcept;
  // The transport is done with memory of a slot.
  static void on_transferred(transport::Completion& self, Status status) noexcept;
  // Returns a failure of the transfer, with the names of the peer and the region. Returns ok for ok.
  Status about(const Transfer& transfer, const Status& why) const;
  // A device has ended its work for a transfer.
  void on_device_end(Transfer& transfer, Status status) noexcept;
  // Any thread: a device is about to use the peer's memory directly. Returns false if the memory is revoked, or the
  // connection has ended.
  bool begin_use(RemoteMemory& memory) noexcept;
  // Once for each begin_use() that returned true.
  void end_use(RemoteMemory& memory) noexcept;
  // No use begins any more. Returns whether none is left: only then may the peer learn that the connection has ended.
  bool end_uses() noexcept { return uses_.close(); }
  bool has_uses() const noexcept { return !uses_.is_empty(); }
  // Nothing refers to the granted memory any more.
  void release_grant(uint32_t grant) noexcept;

  void tick(sync::Clock::time_point now) noexcept;
  void fail(const Status& reason) noexcept;
  void on_transport_gone() noexcept;
  bool has_running() const noexcept { return num_active_ != 0; }
  // Returns whether no transfer is under way, and the transport uses no memory of an earlier one.
  bool is_idle() const noexcept {
    return num_active_ == 0 && draining_.empty() && !slots_.has_in_flight() && uses_.is_empty();
  }
  // Sends a header that needs no answer.
  void send(transport::OneSidedHeader header) noexcept;

 private:
  using Slot = RequestSlots::Slot;

  Status check(const Transfer& transfer) const;
  Status cancelled(const Transfer& transfer) const;
  Status check_handle(const Transfer& transfer) const;
  void advance(Transfer& transfer) noexcept;
  // Copies the next blocks directly, at most kStep bytes for each thread that takes part.
  void copy(Transfer& transfer) noexcept;
  // Returns whether this process copies a block without a request.
  static bool copies(const Transfer& transfer, const Transfer::Block& block) noexcept;
  // Makes the copies of one step. The arguments are those of each copy.
  template <typename Copy, typename... Arguments>
  static CopyOutcome copy_step(Transfer& transfer, const RemoteMemory& remote, std::vector<Copy>& copies,
                               const Arguments&... arguments) noexcept;
  // Adds the next blocks of this memory, at most `most` bytes, and takes them for copied. Returns whether there were
  // any.
  template <typename Copy>
  static bool add_blocks(Transfer& transfer, const RemoteMemory& remote, size_t most, Copy& copy) noexcept;
  static void advance_by(Transfer& transfer, size_t num_bytes) noexcept;
  // Returns whether the transfer's notification or opening is due.
  bool has_control_to_send(const Transfer& transfer) const noexcept;
  void send_control(Transfer& transfer, Slot& slot) noexcept;
  void request(Transfer& transfer, Slot& slot) noexcept;
  void request_block(Transfer& transfer, Slot& slot) noexcept;
  void request_list(Transfer& transfer, Slot& slot, size_t num_blocks) noexcept;
  size_t num_listed(const Transfer& transfer) const noexcept;
  static bool may_share_list(const Transfer::Block& first, const Transfer::Block& block) noexcept;
  void post(Slot& slot, transport::OneSidedHeader header, ConstBuffer payload) noexcept;
  bool begins_to_notify(const Transfer& transfer) const noexcept;
  bool has_turn(const Transfer& transfer) noexcept;
  // Returns null if the transfer has to wait.
  Slot* take_slot(Transfer& transfer) noexcept;
  void answer(Slot& slot, Status status) noexcept;
  void settle(Slot& slot) noexcept;
  void serve_waiting() noexcept;
  void begin_device_works(Transfer& transfer) noexcept;
  void finish(Transfer& transfer, Status status) noexcept;
  void release_drained() noexcept;
  void unpack(Slot& slot, std::span<const std::byte> bytes) noexcept;
  std::shared_ptr<RemoteMemory> memory_of(uint32_t grant, GrantInfo info);
  bool has_lane(std::string_view name) noexcept;
  bool maps(RemoteMemory& memory);
  bool reads_directly(const RemoteMemory& memory) noexcept;
  void drop(const transport::Payload& payload) noexcept;

  Connection& connection_;
  const transport::PeerId peer_;
  const size_t most_list_bytes_;  // of a table and its blocks, which travel in one message
  RequestSlots slots_;
  OpenedGrants grants_;
  IntrusiveList<Transfer> active_;
  std::vector<DirectRead> reads_;                  // of one step; kept for the next one
  std::vector<MemoryCopy> copies_;                 // of one step, too
  IntrusiveList<Transfer> draining_;               // finished, but the transport still uses their memory
  IntrusiveList<Transfer, AwaitsSlot> waiting_;    // for a slot
  IntrusiveList<Transfer, AwaitsSlot> unstarted_;  // until fewer transfers write towards a notification
  size_t num_active_ = 0;
  uint32_t num_named_ = 0;    // transfers that have been given an id
  size_t num_notifying_ = 0;  // transfers that write towards a notification
  UseGate uses_;              // of memory of the peer by devices of this process
  bool has_failed_ = false;   // the connection
  bool is_serving_ = false;
  Transfer* served_ = nullptr;  // whose turn it is to take a slot
};

}  // namespace axon::rpc
