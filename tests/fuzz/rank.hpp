// For fuzz targets: a rank that enters collectives, posts and cancels receives, and receives messages, as the input
// says.
#pragma once

#include <sys/eventfd.h>

#include <algorithm>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "base/task.hpp"
#include "fuzz.hpp"
#include "messaging/exchange.hpp"

namespace axon::transport {

inline constexpr uint64_t kKey = 0x1122334455667788;
inline constexpr uint8_t kNumRanks = 3;
inline constexpr int kMostActions = 100;
inline constexpr Fingerprint kReduce{
    .operation = OperationKind::kAllReduce, .dtype = DataType::kInt32, .num_elements = 4};
inline constexpr Fingerprint kMessage{
    .operation = OperationKind::kPointToPoint, .dtype = DataType::kInt32, .num_elements = 4};

// A transport in which large payloads wait until a later progress() fetches them.
class FuzzTransport final : public Transport {
 public:
  void set_receiver(Receiver& receiver) noexcept override { receiver_ = &receiver; }
  std::span<const std::byte> address() const noexcept override { return {}; }
  Result<PeerId> add_peer(std::span<const std::byte>, bool) override { return num_peers_++; }
  Result<std::vector<Lane>> lanes(PeerId) override { return std::vector<Lane>(); }
  std::optional<Status> send(PeerId, const MessageHeader&, ConstBuffer, Completion&) noexcept override {
    return Status();
  }
  std::optional<Status> send_rendezvous(PeerId, const MessageHeader&, ConstBuffer, Completion&) noexcept override {
    return Status();
  }
  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept override {
    const auto found = waiting_.find(rendezvous);
    CHECK(found != waiting_.end() && found->second == into.num_bytes);
    waiting_.erase(found);
    fetches_.push_back({into, &completion});
    return std::nullopt;
  }
  void refuse(void* rendezvous, const Status&) noexcept override { CHECK(waiting_.erase(rendezvous) == 1); }
  void drop_peer(PeerId) noexcept override {}
  unsigned progress() noexcept override {
    const auto ended = std::exchange(fetches_, {});
    for (const auto& [into, completion] : ended) {
      if (into.num_bytes != 0) std::memset(into.data, 0x5A, into.num_bytes);
      completion->done(*completion, Status());
    }
    return static_cast<unsigned>(ended.size());
  }
  int event_fd() const noexcept override {
    static const int never = eventfd(0, EFD_CLOEXEC);
    return never;
  }
  bool arm() noexcept override { return true; }
  void flush(int) noexcept override {}

  void* send_rts(size_t num_bytes) {
    void* rendezvous = &handles_.emplace_back();
    waiting_.emplace(rendezvous, num_bytes);
    return rendezvous;
  }
  bool is_idle() const noexcept { return waiting_.empty() && fetches_.empty(); }
  Receiver& receiver() noexcept { return *receiver_; }

 private:
  Receiver* receiver_ = nullptr;
  PeerId num_peers_ = 0;
  std::list<char> handles_;
  std::map<void*, size_t> waiting_;
  std::vector<std::pair<Buffer, Completion*>> fetches_;
};

inline Task<Status> await(messaging::Exchange&, messaging::Batch& batch) {
  co_return co_await batch;
}

struct Receive {
  Receive(messaging::Messenger& messenger, messaging::Inbox& inbox, uint32_t sequence, const Fingerprint& fingerprint)
      : exchange(messenger, inbox, sequence, fingerprint), batch(exchange), task(await(exchange, batch)) {}

  messaging::Exchange exchange;
  messaging::Batch batch;
  Task<Status> task;
};

class Rank final : messaging::LossListener, messaging::InboxListener {
 public:
  explicit Rank(Input& input) : input_(input) { messenger_.expect(kKey); }

  ~Rank() {
    receives_.clear();
    messenger_.progress();
    messenger_.detach(inbox_);
    messenger_.discard_early();
  }

  void act() {
    switch (input_.take<uint8_t>() % 10) {
      case 0:
        if (!std::exchange(attached_, true)) messenger_.attach(inbox_);
        break;
      case 1:
        inbox_.enter(++entered_, kReduce);
        break;
      case 2:
        if (entered_ != 0) post(entered_, kReduce, input_.take<uint8_t>() % kNumRanks);
        break;
      case 3:
        post(0, kMessage, input_.take<uint8_t>() % (kNumRanks + 1) - 1);
        break;
      case 4:
        if (!receives_.empty()) receives_.pop_front();
        break;
      case 5:
        messenger_.progress();
        break;
      case 6:
        end_collective();
        break;
      case 7:
        if (!receives_.empty()) receives_.back().exchange.fail({ErrorCode::kAborted, "given up"});
        messenger_.run_ready();
        break;
      case 8:
        send(input_.take<uint8_t>() % kNumRanks);
        break;
      default:
        get_message();
    }
  }

  // The first byte chooses between plausible and arbitrary fields.
  MessageHeader take_header() {
    const auto plausible = input_.take<uint8_t>();
    OperationHeader header;  // in the order of fields in which the corpus has them
    header.key = input_.take<uint64_t>();
    header.source = input_.take<uint32_t>();
    header.destination = input_.take<uint32_t>();
    header.sequence = input_.take<uint32_t>();
    header.slot = input_.take<uint32_t>();
    header.fingerprint = input_.take<Fingerprint>();
    if (plausible & 1) header.key = kKey;
    if (plausible & 2) header.source %= kNumRanks;
    if (plausible & 2) header.destination = 0;
    if (plausible & 4) header.sequence = entered_ + header.sequence % 4 - 1;
    if (plausible & 8) header.slot %= 4;
    if (plausible & 16) header.fingerprint = plausible & 32 ? kReduce : kMessage;
    if (plausible & 64) return departure(header);
    if (plausible & 128) return credit(header);
    return header;
  }

  void get(const MessageHeader& header, const Payload& payload) {
    const uint64_t num_refused = messenger_.num_refused();
    messenger_.on_message(header, payload);
    const bool from_member = header.key == kKey && is_from_member(header);
    if (!from_member && (attached_ || header.key != kKey)) CHECK(messenger_.num_refused() == num_refused + 1);
    messenger_.run_ready();
  }

 private:
  static ControlHeader departure(const OperationHeader& header) {
    return {.key = header.key,
            .kind = MessageKind::kDeparture,
            .num_sent = header.slot,
            .source = header.source,
            .destination = header.destination};
  }
  static CreditHeader credit(const OperationHeader& header) {
    return {.key = header.key,
            .kind = header.sequence % 8 == 7 ? MessageKind::kLeave : MessageKind::kCredit,
            .num_messages = header.slot,
            .num_bytes = header.slot,
            .source = header.source,
            .destination = header.destination};
  }
  static bool is_from_member(const MessageHeader& header) {
    const auto is_member = [](const auto& typed) { return typed.source < kNumRanks && typed.destination == 0; };
    switch (family_of(header.kind)) {
      case MessageFamily::kOperation:
        return is_member(header.as<OperationHeader>());
      case MessageFamily::kControl:
        return is_member(header.as<ControlHeader>());
      case MessageFamily::kCredit:
        return is_member(header.as<CreditHeader>());
      default:
        return false;
    }
  }

  void post(uint32_t sequence, const Fingerprint& fingerprint, int peer) {
    Receive& receive = receives_.emplace_back(messenger_, inbox_, sequence, fingerprint);
    auto& memory = memory_.emplace_back(input_.take<uint8_t>() % 64);  // must outlive transfers of cancelled receives
    receive.batch.receive({.peer = peer, .slot = input_.take<uint8_t>() % 4u}, {memory.data(), memory.size()});
    receive.task.resume();
    messenger_.run_ready();
  }

  void send(int peer) {
    Receive& sending = receives_.emplace_back(messenger_, inbox_, 0, kMessage);
    auto& memory = memory_.emplace_back(input_.take<uint8_t>() % 64);
    sending.batch.send({.peer = peer}, {memory.data(), memory.size()});
    sending.task.resume();
    messenger_.run_ready();
  }

  void end_collective() {
    if (entered_ == 0) return;
    receives_.remove_if([&](const Receive& receive) { return receive.exchange.sequence() == entered_; });
    inbox_.leave(entered_);
    ended_.insert(entered_);
  }

  void get_message() {
    const MessageHeader header = take_header();
    const std::vector<std::byte> bytes(input_.take<uint8_t>() % 64, std::byte{0xA5});
    const bool is_large = input_.take<uint8_t>() % 2 != 0;
    Payload payload{.bytes = bytes.data(), .num_bytes = bytes.size()};
    if (is_large) payload = {.num_bytes = bytes.size(), .rendezvous = transport_.send_rts(bytes.size())};
    get(header, payload);
  }

  void on_control(const ControlHeader& header, const Payload&) noexcept override {
    CHECK(family_of(header.kind) == MessageFamily::kControl && header.source < kNumRanks);
    if (header.kind != MessageKind::kDeparture) return;
    inbox_.depart(header.source, static_cast<uint32_t>(header.num_sent), {ErrorCode::kAborted, "left"});
  }
  void on_peer_lost(PeerId, Status) noexcept override {}
  Status on_mismatch(const OperationHeader& theirs, const Fingerprint& ours) noexcept override {
    CHECK(theirs.fingerprint != ours && ours == kReduce);
    CHECK(name_of(theirs.fingerprint.dtype) != nullptr && name_of(theirs.fingerprint.reduction) != nullptr);
    return {ErrorCode::kMismatch, "mismatch"};
  }
  void on_overflow(Status) noexcept override { CHECK(false); }
  bool has_ended(uint32_t sequence) noexcept override { return ended_.contains(sequence); }

  Input& input_;
  FuzzTransport transport_;
  messaging::Messenger messenger_{transport_, *this};
  const messaging::Team team_{.rank = 0, .peers = {0, 1, 2}, .keys = {kKey, 2, 3}};
  static constexpr messaging::Allowance kAllowance{.num_messages = 4, .num_bytes = 100};
  messaging::Inbox inbox_{transport_, messenger_.size_class_pool(), team_, *this, kAllowance};
  std::list<std::vector<std::byte>> memory_;
  std::list<Receive> receives_;
  std::set<uint32_t> ended_;
  uint32_t entered_ = 0;
  bool attached_ = false;
};

}  // namespace axon::transport
