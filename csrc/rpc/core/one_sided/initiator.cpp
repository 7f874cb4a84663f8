#include "rpc/core/one_sided/initiator.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/denials.hpp"

namespace axon::rpc {

using transport::MessageKind;
using transport::OneSidedHeader;

Initiator::Initiator(Connection& connection, transport::PeerId peer) noexcept
    : connection_(connection),
      peer_(peer),
      most_list_bytes_(std::min(kMostListNumBytes, connection.engine().messenger().transport().largest_eager())),
      slots_(*this) {}

// ---- Transfers

void Initiator::begin(Transfer& transfer) noexcept {
  transfer.is_begun_ = true;
  transfer.begun_at_ = sync::Clock::now();
  transfer.deadline_ =
      transfer.begun_at_ + std::min<sync::Clock::duration>(transfer.timeout, std::chrono::hours(24 * 365));
  active_.push_back(transfer);
  ++num_active_;
  transfer.num_device_works_left_ = transfer.device_works_.size();
  transfer.num_in_flight_ += transfer.num_device_works_left_;
  transfer.retain();
  if (Status why = check(transfer); !why.ok()) {
    finish(transfer, std::move(why));
  } else if (transfer.kind_ == Transfer::Kind::kWrite && transfer.notification) {
    transfer.id_ = ++num_named_ | 1U << 31;
  }
  begin_device_works(transfer);
  if (!transfer.is_final_) {
    advance(transfer);
  } else if (transfer.num_in_flight_ == 0 && !transfer.is_drained_) {
    transfer.ListNode<Transfer>::unlink();  // what ended at once needs no later look
    transfer.is_drained_ = true;
  }
  transfer.release();
}

Status Initiator::check(const Transfer& transfer) const {
  if (Status why = connection_.why_nothing_begins(); !why.ok()) return about(transfer, why);
  if (transfer.is_given_up_) return cancelled(transfer);
  if (num_active_ > kMostTransfers) {
    return {ErrorCode::kResourceExhausted, std::to_string(kMostTransfers) + " transfers with '" +
                                               connection_.identity().name + "' are under way, the limit"};
  }
  const Access wanted = transfer.kind_ == Transfer::Kind::kWrite ? Access::kWrite : Access::kRead;
  for (const std::shared_ptr<RemoteMemory>& remote : transfer.remotes_) {
    if (remote->is_revoked) return about(transfer, region_is_closed(remote->region()));
    if (!allows(remote->access(), wanted)) {
      return about(transfer, handle_allows_only(remote->region(), remote->access()));
    }
  }
  return transfer.kind_ == Transfer::Kind::kOpen ? check_handle(transfer) : Status();
}

// Every holder of a handle may use it, so it is sent to no other peer than its owner.
Status Initiator::check_handle(const Transfer& transfer) const {
  const Result<RegionHandle> handle = RegionHandle::decode(transfer.handle);
  if (!handle.ok()) return about(transfer, handle.status());
  if (handle.value().owner == connection_.identity().incarnation) return {};
  return about(transfer, access_denied("the handle is of another runtime, or of an earlier one"));
}

Status Initiator::cancelled(const Transfer& transfer) const {
  return {ErrorCode::kCancelled, "'" + connection_.identity().name + "': " + transfer.description() + " was cancelled"};
}

Status Initiator::about(const Transfer& transfer, const Status& why) const {
  if (why.ok()) return {};
  return {why.code(), "'" + connection_.identity().name + "': " + transfer.description() + " failed: " + why.message()};
}

void Initiator::resume(Transfer& transfer) noexcept {
  transfer.is_continued_ = false;
  if (!transfer.is_final_) advance(transfer);
  transfer.release();
  serve_waiting();
}

// Does what can be done now. Nested calls, for answers that arrive while a request is sent, leave it to the outer one.
void Initiator::advance(Transfer& transfer) noexcept {
  if (std::exchange(transfer.is_advancing_, true)) return;
  transfer.retain();
  bool has_copied = false;
  while (!transfer.is_final_) {
    const bool has_block = transfer.next_ < transfer.blocks_.size();
    if (has_block && copies(transfer, transfer.blocks_[transfer.next_])) {
      if (std::exchange(has_copied, true)) {
        if (std::exchange(transfer.is_continued_, true)) break;
        transfer.retain();
        connection_.engine().continue_later(transfer.continuation_);
        break;
      }
      copy(transfer);
      continue;
    }
    if (!has_block && transfer.num_device_works_left_ != 0) break;
    if (!has_block && !has_control_to_send(transfer)) {
      if (transfer.num_requests_ == 0) finish(transfer, Status());
      break;
    }
    Slot* const slot = take_slot(transfer);
    if (slot == nullptr) break;
    has_block ? request(transfer, *slot) : send_control(transfer, *slot);
  }
  transfer.is_advancing_ = false;
  transfer.release();
}

void Initiator::cancel(Transfer& transfer) noexcept {
  transfer.is_given_up_ = true;
  if (!transfer.is_begun_ || transfer.is_final_) return;
  finish(transfer, cancelled(transfer));
  serve_waiting();
}

void Initiator::finish(Transfer& transfer, Status status) noexcept {
  if (std::exchange(transfer.is_final_, true)) return;
  transfer.ListNode<Transfer>::unlink();
  transfer.ListNode<Transfer, AwaitsSlot>::unlink();
  --num_active_;
  if (transfer.is_notifying_) {
    --num_notifying_;
    if (Transfer* const next = unstarted_.pop_front()) waiting_.push_back(*next);
  }
  transfer.ended_at_ = sync::Clock::now();
  if (transfer.num_requests_ != 0) slots_.detach(transfer);
  if (!status.ok() && transfer.num_sent_ != 0 && transfer.id_ != 0) {
    send({.kind = MessageKind::kForget,
          .transfer = transfer.id_,
          .offset = transfer.has_sent_control_ ? 1U : 0U,
          .num_bytes = transfer.num_sent_});
  }
  transfer.status_ = std::move(status);
  transfer.is_drained_ = transfer.num_in_flight_ == 0;
  if (!transfer.is_drained_) draining_.push_back(transfer);
  connection_.engine().post(transfer);
  if (transfer.num_device_works_left_ == 0) return;
  for (const std::unique_ptr<DeviceWork>& work : transfer.device_works_) work->stop();
}

void Initiator::tick(sync::Clock::time_point now) noexcept {
  release_drained();
  for (Transfer* transfer = active_.front(); transfer != nullptr;) {
    Transfer* next = active_.next(*transfer);
    if (now >= transfer->deadline_) {
      const bool has_others = transfer->num_device_works_left_ != 0;  // which end with it
      const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(transfer->timeout);
      finish(*transfer, Status(ErrorCode::kTimeout, "'" + connection_.identity().name + "' has not finished " +
                                                        transfer->description() + " within " +
                                                        std::to_string(limit.count()) + " ms"));
      if (has_others) next = active_.front();
    }
    transfer = next;
  }
  serve_waiting();
}

void Initiator::release_drained() noexcept {
  for (Transfer* transfer = draining_.front(); transfer != nullptr;) {
    Transfer* const next = draining_.next(*transfer);
    if (transfer->finished() && transfer->num_in_flight_ == 0) {
      transfer->ListNode<Transfer>::unlink();
      transfer->is_drained_ = true;
      connection_.engine().post(*transfer);
    }
    transfer = next;
  }
}

void Initiator::fail(const Status& reason) noexcept {
  has_failed_ = true;
  uses_.close();
  while (Transfer* transfer = active_.front()) finish(*transfer, about(*transfer, reason));
  grants_.end();
}

void Initiator::on_transport_gone() noexcept {
  slots_.end_all();
  while (Transfer* transfer = draining_.pop_front()) {
    transfer->is_drained_ = true;
    connection_.engine().post(*transfer);
  }
}

// ---- Requests

bool Initiator::has_control_to_send(const Transfer& transfer) const noexcept {
  if (transfer.has_sent_control_) return false;
  if (transfer.kind_ == Transfer::Kind::kOpen) return true;
  if (!transfer.notification) return false;
  return transfer.kind_ != Transfer::Kind::kRead || transfer.num_requests_ == 0;
}

// Returns whether the transfer begins to write towards a notification. The owner keeps account of all transfers that
// do, so their number is limited.
bool Initiator::begins_to_notify(const Transfer& transfer) const noexcept {
  return transfer.id_ != 0 && !transfer.is_notifying_ && transfer.next_ < transfer.blocks_.size();
}

// While transfers wait, each takes one slot in its turn.
bool Initiator::has_turn(const Transfer& transfer) noexcept {
  if (served_ != &transfer) return waiting_.empty();
  served_ = nullptr;
  return true;
}

Initiator::Slot* Initiator::take_slot(Transfer& transfer) noexcept {
  if (transfer.ListNode<Transfer, AwaitsSlot>::linked()) return nullptr;
  const bool has_turn_now = has_turn(transfer);
  if (begins_to_notify(transfer) && num_notifying_ >= kMostNotifying) {
    unstarted_.push_back(transfer);
    return nullptr;
  }
  if (!slots_.has_free() || !has_turn_now) {
    waiting_.push_back(transfer);
    return nullptr;
  }
  if (begins_to_notify(transfer)) {
    transfer.is_notifying_ = true;
    ++num_notifying_;
  }
  return &slots_.take(transfer);
}

void Initiator::send_control(Transfer& transfer, Slot& slot) noexcept {
  transfer.has_sent_control_ = true;
  OneSidedHeader header{.kind = MessageKind::kOpenRegion};
  ConstBuffer payload{.data = transfer.handle.data(), .num_bytes = transfer.handle.size()};
  if (transfer.kind_ != Transfer::Kind::kOpen) {
    header.kind = MessageKind::kNotify;
    header.transfer = transfer.id_;
    header.num_bytes = transfer.num_sent_;
    payload = {.data = reinterpret_cast<const std::byte*>(transfer.notification->data()),
               .num_bytes = transfer.notification->size()};
  } else {
    slot.opens = true;
    grants_.begin_opening();
  }
  post(slot, header, payload);
}

void Initiator::request(Transfer& transfer, Slot& slot) noexcept {
  const size_t num_blocks = num_listed(transfer);
  slot.first = transfer.next_;
  slot.num_blocks = std::max<size_t>(num_blocks, 1);
  transfer.next_ += slot.num_blocks;
  num_blocks > 1 ? request_list(transfer, slot, num_blocks) : request_block(transfer, slot);
}

// The owner moves a list of one region of a device by one copy.
bool Initiator::may_share_list(const Transfer::Block& first, const Transfer::Block& block) noexcept {
  return first.remote == block.remote || (!first.remote->is_device() && !block.remote->is_device());
}

// Returns how many of the next blocks fit into one list.
size_t Initiator::num_listed(const Transfer& transfer) const noexcept {
  size_t num_bytes = sizeof(uint64_t);
  size_t end = transfer.next_;
  for (; end < transfer.blocks_.size(); ++end) {
    const Transfer::Block& block = transfer.blocks_[end];
    if (block.local.num_bytes > kLargestListed || !may_share_list(transfer.blocks_[transfer.next_], block)) break;
    num_bytes += sizeof(ListEntry) + block.local.num_bytes;
    if (num_bytes > most_list_bytes_ || copies(transfer, block)) break;
  }
  return end - transfer.next_;
}

void Initiator::request_block(Transfer& transfer, Slot& slot) noexcept {
  const Transfer::Block& block = transfer.blocks_[slot.first];
  OneSidedHeader header{.kind = MessageKind::kRead,
                        .dtype = transfer.dtype,
                        .grant = block.remote->number(),
                        .offset = block.offset,
                        .num_bytes = block.local.num_bytes};
  ConstBuffer payload;
  if (transfer.kind_ == Transfer::Kind::kWrite) {
    header.kind = MessageKind::kWrite;
    payload = block.local;
  } else {
    slot.num_bytes = block.local.num_bytes;
  }
  post(slot, header, payload);
}

void Initiator::request_list(Transfer& transfer, Slot& slot, size_t num_blocks) noexcept {
  const auto blocks = std::span(transfer.blocks_).subspan(slot.first, num_blocks);
  std::vector<ListEntry> entries;
  entries.reserve(num_blocks);
  for (const Transfer::Block& block : blocks) {
    entries.push_back({.grant = block.remote->number(),
                       .num_bytes = static_cast<uint32_t>(block.local.num_bytes),
                       .offset = block.offset});
  }
  append_table(slot.frame, entries);
  OneSidedHeader header{.kind = MessageKind::kGather, .dtype = transfer.dtype};
  if (transfer.kind_ == Transfer::Kind::kWrite) {
    header.kind = MessageKind::kScatter;
    for (const Transfer::Block& block : blocks) {
      slot.frame.insert(slot.frame.end(), block.local.data, block.local.data + block.local.num_bytes);
    }
  } else {
    for (const Transfer::Block& block : blocks) slot.num_bytes += block.local.num_bytes;
  }
  post(slot, header, {.data = slot.frame.data(), .num_bytes = slot.frame.size()});
}

void Initiator::post(Slot& slot, OneSidedHeader header, ConstBuffer payload) noexcept {
  const bool writes = header.kind == MessageKind::kWrite || header.kind == MessageKind::kScatter;
  if (writes) {
    header.transfer = slot.transfer->id_;
    ++slot.transfer->num_sent_;
  }
  header.key = connection_.identity().peer_key;
  header.number = slot.number;
  slots_.begin(slot.sending);
  auto sent = connection_.engine().messenger().transport().send(peer_, header, payload, slot.sending);
  if (!sent) return;
  if (!sent->ok()) {
    if (writes && slot.transfer != nullptr) --slot.transfer->num_sent_;
    if (header.kind == MessageKind::kNotify && slot.transfer != nullptr) slot.transfer->has_sent_control_ = false;
    answer(slot, sent->clone());
  }
  on_transferred(slot.sending, Status());
}

void Initiator::send(OneSidedHeader header) noexcept {
  messaging::Messenger& messenger = connection_.engine().messenger();
  // A peer that has closed the connection still waits until nothing here uses its memory.
  if ((has_failed_ && header.kind != MessageKind::kRevoked) || messenger.is_lost(peer_)) return;
  header.key = connection_.identity().peer_key;
  [[maybe_unused]] const auto sent = messenger.transport().send(peer_, header, {}, transport::unattended);
}

// ---- Answers

// A request whose payload was refused is answered, too, with the reason.
void Initiator::on_transferred(transport::Completion& self, Status status) noexcept {
  auto& in_flight = static_cast<RequestSlots::InFlight&>(self);
  if (!in_flight.is_under_way) return;
  Slot& slot = in_flight.slot;
  Initiator& initiator = slot.initiator;
  const bool is_of_ended_transfer = slot.transfer->is_final_;
  initiator.slots_.end(in_flight);
  if (is_of_ended_transfer) initiator.release_drained();
  if (&in_flight == &slot.fetching) initiator.answer(slot, std::move(status));
  initiator.settle(slot);
}

void Initiator::answer(Slot& slot, Status status) noexcept {
  if (std::exchange(slot.is_answered, true)) return;
  slot.status = std::move(status);
}

void Initiator::settle(Slot& slot) noexcept {
  if (!slot.is_taken || !slot.is_answered || slot.is_in_flight()) return;
  Transfer* const transfer = slot.transfer;
  const Status status = std::exchange(slot.status, Status());
  if (slot.opens) grants_.end_opening();
  slots_.give_back(slot);
  if (transfer != nullptr && !transfer->is_final_) {
    --transfer->num_requests_;
    status.ok() ? advance(*transfer) : finish(*transfer, about(*transfer, status));
  }
  serve_waiting();
}

void Initiator::serve_waiting() noexcept {
  if (std::exchange(is_serving_, true)) return;
  while (slots_.has_free()) {
    Transfer* const transfer = waiting_.pop_front();
    if (transfer == nullptr) break;
    served_ = transfer;
    advance(*transfer);
    served_ = nullptr;
  }
  is_serving_ = false;
}

void Initiator::on_done(const OneSidedHeader& header, const transport::Payload& payload) noexcept {
  Slot* const slot = slots_.awaiting(header.number);
  if (slot != nullptr) {
    const bool has_text = payload.rendezvous == nullptr && payload.num_bytes != 0;
    std::string text(has_text ? reinterpret_cast<const char*>(payload.bytes) : "", has_text ? payload.num_bytes : 0);
    const bool is_valid = header.error <= ErrorCode::kOk;
    const bool lacks_content = header.error == ErrorCode::kOk && (slot->opens || slot->num_bytes != 0);
    if (lacks_content) text = "it has answered without a grant or data";
    answer(*slot, Status(is_valid && !lacks_content ? header.error : ErrorCode::kTransport, std::move(text)));
  }
  drop(payload);
  if (slot != nullptr) settle(*slot);
}

void Initiator::on_data(const OneSidedHeader& header, const transport::Payload& payload) noexcept {
  Slot* const slot = slots_.awaiting(header.number);
  if (slot == nullptr) return drop(payload);
  Transfer* const transfer = slot->transfer;
  const bool is_wanted = transfer != nullptr && !transfer->is_final_;
  const bool fits = slot->num_bytes != 0 && payload.num_bytes == slot->num_bytes;
  if (!is_wanted || !fits || (payload.rendezvous != nullptr && slot->num_blocks != 1)) {
    drop(payload);
    answer(*slot, Status(ErrorCode::kTransport, "it has sent data of another length than requested"));
    return settle(*slot);
  }
  if (payload.rendezvous == nullptr) {
    unpack(*slot, {payload.bytes, payload.num_bytes});
    answer(*slot, Status());
    return settle(*slot);
  }
  slots_.begin(slot->fetching);
  const Buffer into = transfer->blocks_[slot->first].local;
  auto fetched = connection_.engine().messenger().transport().fetch(payload.rendezvous, into, slot->fetching);
  if (fetched) on_transferred(slot->fetching, std::move(*fetched));
}

void Initiator::unpack(Slot& slot, std::span<const std::byte> bytes) noexcept {
  for (size_t i = slot.first; i < slot.first + slot.num_blocks; ++i) {
    const Buffer local = slot.transfer->blocks_[i].local;
    std::memcpy(local.data, bytes.data(), local.num_bytes);
    bytes = bytes.subspan(local.num_bytes);
  }
}

void Initiator::drop(const transport::Payload& payload) noexcept {
  messaging::drop_payload(connection_.engine().messenger(), payload);
}

}  // namespace axon::rpc
