// A messenger over a transport that sends nothing: tests hand it the messages that arrive, one by one.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/task.hpp"
#include "messaging/exchange.hpp"
#include "messaging/messenger.hpp"

namespace axon::messaging {

// A transport that drops its sends at once; the test supplies the payloads of rendezvous.
class SilentTransport final : public transport::Transport {
 public:
  void set_receiver(transport::Receiver&) noexcept override {}
  std::span<const std::byte> address() const noexcept override { return {}; }
  Result<transport::PeerId> add_peer(std::span<const std::byte>, bool) override { return transport::PeerId{0}; }
  Result<std::vector<transport::Lane>> lanes(transport::PeerId) override { return std::vector<transport::Lane>(); }
  std::optional<Status> send(transport::PeerId, const transport::MessageHeader& header, ConstBuffer,
                             transport::Completion&) noexcept override {
    sent.push_back(header);
    return Status();
  }
  std::optional<Status> send_rendezvous(transport::PeerId peer, const transport::MessageHeader& header,
                                        ConstBuffer payload, transport::Completion& completion) noexcept override {
    return send(peer, header, payload, completion);
  }
  std::optional<Status> fetch(void* rendezvous, Buffer into, transport::Completion&) noexcept override {
    if (fails) return Status(ErrorCode::kTransport, "broken");
    std::memcpy(into.data, rendezvous, into.num_bytes);
    return Status();
  }
  void refuse(void*, const Status& why) noexcept override {
    ++num_refused;
    reason = why.clone();
  }
  void drop_peer(transport::PeerId) noexcept override {}
  unsigned progress() noexcept override { return 0; }
  int event_fd() const noexcept override { return -1; }
  bool arm() noexcept override { return true; }
  void flush(int) noexcept override {}

  std::vector<transport::MessageHeader> sent;
  int num_refused = 0;
  Status reason;  // the reason of the latest refusal
  bool fails = false;
};

class NoLosses final : public LossListener {
 public:
  void on_peer_lost(transport::PeerId, Status) noexcept override {}
};

class RecordingListener final : public InboxListener {
 public:
  void on_control(const transport::ControlHeader& header, const transport::Payload&) noexcept override {
    control_kinds.push_back(header.kind);
  }
  Status on_mismatch(const transport::OperationHeader& theirs, const transport::Fingerprint& ours) noexcept override {
    mismatches.push_back({theirs.sequence, ours});
    return {ErrorCode::kMismatch, "mismatch of " + std::to_string(theirs.sequence)};
  }
  void on_overflow(Status reason) noexcept override { overflows.push_back(reason.message()); }
  bool has_ended(uint32_t sequence) noexcept override { return std::ranges::count(ended, sequence) != 0; }
  std::vector<std::pair<uint32_t, transport::Fingerprint>> mismatches;
  std::vector<std::string> overflows;
  std::vector<uint32_t> ended;
  std::vector<transport::MessageKind> control_kinds;
};

inline constexpr transport::Fingerprint kReduce{.operation = transport::OperationKind::kAllReduce,
                                                .dtype = DataType::kInt32,
                                                .reduction = Reduction::kSum,
                                                .num_elements = 1};
inline constexpr transport::Fingerprint kMessage{
    .operation = transport::OperationKind::kPointToPoint, .dtype = DataType::kInt32, .num_elements = 1};

inline Task<Status> await(Exchange&, Batch& batch) {
  co_return co_await batch;
}

// One integer, received by its own exchange.
class Receive {
 public:
  Receive(Messenger& messenger, Inbox& inbox, uint32_t sequence, transport::Fingerprint fingerprint, Message message)
      : exchange_(messenger, inbox, sequence, fingerprint), batch_(exchange_), task_(await(exchange_, batch_)) {
    batch_.receive(message, {reinterpret_cast<std::byte*>(&value), sizeof value});
    task_.resume();
    messenger.run_ready();
  }
  bool done() const { return task_.done(); }
  Status status() { return task_.take(); }
  Exchange& exchange() { return exchange_; }

  int32_t value = -1;

 private:
  Exchange exchange_;
  Batch batch_;
  Task<Status> task_;
};

class MessengerTest : public testing::Test {
 protected:
  static constexpr uint64_t kKey = 77;

  MessengerTest() { messenger_.expect(kKey); }

  transport::OperationHeader header(transport::Fingerprint fingerprint, uint32_t source, uint32_t sequence,
                                    uint32_t slot) const {
    return {.key = kKey,
            .fingerprint = fingerprint,
            .source = source,
            .destination = 0,
            .sequence = sequence,
            .slot = slot};
  }
  static transport::ControlHeader control(transport::MessageKind kind, uint32_t source) {
    return {.key = kKey, .kind = kind, .source = source, .destination = 0};
  }
  void arrive(const transport::MessageHeader& header, int32_t value) {
    messenger_.on_message(header, {.bytes = reinterpret_cast<const std::byte*>(&value), .num_bytes = sizeof value});
    messenger_.run_ready();
  }
  Receive receive(transport::Fingerprint fingerprint, uint32_t sequence, Message message) {
    return Receive(messenger_, inbox_, sequence, fingerprint, message);
  }

  SilentTransport transport_;
  NoLosses losses_;
  RecordingListener listener_;
  Messenger messenger_{transport_, losses_};
  Team team_{.rank = 0, .peers = {0, 1, 2}, .keys = {kKey, 78, 79}};
  Inbox inbox_{transport_, messenger_.size_class_pool(), team_, listener_};
};

}  // namespace axon::messaging
