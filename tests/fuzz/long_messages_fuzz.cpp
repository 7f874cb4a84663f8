// Fuzzes peers' messages about long messages, in any order. Meanwhile, sends of ours succeed, fail or stay pending, and
// peers are dropped or lost. Each waiter is notified once, and unrelated messages are not held back. No rail is open,
// so none of our sends waits for a CTS; stripes have a target of their own.
#include <sys/eventfd.h>

#include <deque>
#include <memory>
#include <vector>

#include "fuzz.hpp"
#include "transport/rails/rail_transport.hpp"

namespace axon::transport {
namespace {

constexpr int kMostActions = 200;
constexpr PeerId kNumPeers = 3;
constexpr size_t kMostBytes = 4 * kLeastStripeBytes;
constexpr uint64_t kFirstName = 100;  // the first peer's name
constexpr std::byte kUntouched{0x5A};

// A transfer's memory and the number of its completions. A fetch must not change bytes past its end.
struct Transfer : Completion {
  explicit Transfer(size_t length) : num_bytes(length), bytes(length + 64, kUntouched) {
    done = [](Completion& self, Status) noexcept {
      auto& transfer = static_cast<Transfer&>(self);
      CHECK(++transfer.num_told == 1);
      transfer.ended = transfer.bytes;
    };
  }
  ~Transfer() {
    for (size_t i = num_bytes; i < bytes.size(); ++i) CHECK(bytes[i] == kUntouched);
    CHECK(num_told == 0 || bytes == ended);  // no write follows a transfer's end
  }
  void tell(std::optional<Status> finished) {
    if (finished) done(*this, std::move(*finished));
  }

  const size_t num_bytes;
  std::vector<std::byte> bytes;
  std::vector<std::byte> ended;
  int num_told = 0;
};

// A network whose sends end as the input says, at once or in a later call.
class FuzzNetwork final : public Transport {
 public:
  explicit FuzzNetwork(Input& input) : input_(input) {}

  void set_receiver(Receiver& receiver) noexcept override { receiver_ = &receiver; }
  std::span<const std::byte> address() const noexcept override { return {}; }
  Result<PeerId> add_peer(std::span<const std::byte>, bool) override { return num_peers_++; }
  Result<std::vector<Lane>> lanes(PeerId) override { return std::vector{Lane{.name = "tcp", .device = ""}}; }
  std::optional<Status> send(PeerId, const MessageHeader&, ConstBuffer, Completion& completion) noexcept override {
    const auto chosen = input_.take<uint8_t>() % 8;
    if (chosen == 0) return failure();
    if (chosen < 5) return Status();
    pending_.push_back(&completion);
    return std::nullopt;
  }
  std::optional<Status> send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                        Completion& completion) noexcept override {
    return send(peer, header, payload, completion);
  }
  std::optional<Status> fetch(void*, Buffer, Completion&) noexcept override { return failure(); }
  void refuse(void*, const Status&) noexcept override {}
  void drop_peer(PeerId) noexcept override {}
  unsigned progress() noexcept override { return 0; }
  int event_fd() const noexcept override { return event_.get(); }
  bool arm() noexcept override { return true; }
  void flush(int) noexcept override {}

  void end_one() {
    if (pending_.empty()) return;
    Completion& completion = *pending_.front();
    pending_.pop_front();
    completion.done(completion, input_.take<uint8_t>() % 4 == 0 ? failure() : Status());
  }
  Receiver& receiver() noexcept { return *receiver_; }

 private:
  static Status failure() { return {ErrorCode::kTransport, "as the input says"}; }

  Input& input_;
  const FileDescriptor event_{eventfd(0, EFD_CLOEXEC)};
  Receiver* receiver_ = nullptr;
  PeerId num_peers_ = 0;
  std::deque<Completion*> pending_;
};

class Player final : Receiver {
 public:
  explicit Player(Input& input) : input_(input) {
    auto network = std::make_unique<FuzzNetwork>(input);
    network_ = network.get();
    transport_ = std::make_unique<RailTransport>(
        std::move(network), RailOptions{.num_rails = 1, .devices = {"lo"}, .use = RailOptions::Use::kToOtherHosts});
    transport_->set_receiver(*this);
    std::memcpy(&name_, transport_->address().data(), sizeof name_);
    for (PeerId peer = 0; peer < kNumPeers; ++peer) {
      const RailAddress rails{.name = kFirstName + peer,
                              .token = {},
                              .port = 0,
                              .takes_turns = false,
                              .most_processes = 0,
                              .addresses = {}};
      std::vector<std::byte> address = rails.encode();
      const auto length = static_cast<uint32_t>(address.size());
      const auto packed = std::as_bytes(std::span(&length, 1));
      address.insert(address.end(), packed.begin(), packed.end());
      CHECK(transport_->add_peer(address, /*same_host=*/true).ok());  // starts no threads
    }
  }

  void act() {
    const auto chosen = input_.take<uint8_t>();
    const PeerId peer = chosen / 16 % kNumPeers;
    switch (chosen % 16) {
      case 0:
        return transport_->drop_peer(peer);
      case 1:
        return lose(peer);
      case 2:
      case 3:
        return send(peer);
      case 4:
        return take_held();
      case 5:
      case 6:
        return network_->end_one();
      case 7:
        transport_->arm();
        transport_->holds_back();
        [[fallthrough]];
      case 8:
        transport_->progress();
        return;
      default:
        return hear(peer);
    }
  }

 private:
  size_t take_length() { return RailTransport::kLongestWhole + 1 + input_.take<uint32_t>() % kMostBytes; }

  void lose(PeerId peer) {
    if (!std::exchange(is_lost_[peer], true)) network_->receiver().on_peer_lost(peer, {ErrorCode::kPeerLost, "lost"});
  }

  void send(PeerId peer) {
    Transfer& transfer = transfers_.emplace_back(take_length());
    transfer.tell(transport_->send(peer, {}, {transfer.bytes.data(), transfer.num_bytes}, transfer));
  }

  void take_held() {
    if (held_.empty()) return;
    const auto [rendezvous, num_bytes] = held_.front();
    held_.pop_front();
    const auto chosen = input_.take<uint8_t>() % 8;
    if (chosen == 0 || num_bytes > kMostBytes)
      return transport_->refuse(rendezvous, {ErrorCode::kMismatch, std::string(num_bytes % 1000, 'x')});
    Transfer& transfer = transfers_.emplace_back(num_bytes - (chosen == 1 ? 1 : 0));
    transfer.tell(transport_->fetch(rendezvous, {transfer.bytes.data(), transfer.num_bytes}, transfer));
  }

  // Chooses mostly messages that a peer of ours might send.
  void hear(PeerId peer) {
    const auto chosen = input_.take<uint8_t>();
    RendezvousHeader header{.key = input_.take<uint64_t>(), .number = input_.take<uint64_t>()};
    header.ticket = input_.take<uint64_t>();
    header.kind = static_cast<MessageKind>(input_.take<uint64_t>());
    const auto value = input_.take<uint64_t>();
    if (chosen % 8 != 0) header.key = name_;
    if (chosen % 8 < 6) header.kind = static_cast<MessageKind>(32 + chosen / 8 % 4);
    if (chosen & 64) header.number = uint64_t{1} << 32 | value % 4;
    std::vector<std::byte> bytes;
    if (header.kind == MessageKind::kRts) {
      const LongMessage message{.header = {},
                                .sender = kFirstName + peer,
                                .num_bytes = chosen & 128 ? 2 * kLeastStripeBytes + value % 3 : value,
                                .stripe_num_bytes = chosen & 64 ? kLeastStripeBytes : value >> 32};
      const auto said = std::as_bytes(std::span(&message, 1));
      bytes = std::vector<std::byte>(said.begin(), said.end());
    }
    if (input_.take<uint8_t>() % 4 == 0) {
      std::vector<std::byte> resized(input_.take<uint32_t>() % 1000);  // g++ 13 misreads resize()
      std::copy_n(bytes.begin(), std::min(bytes.size(), resized.size()), resized.begin());
      bytes = std::move(resized);
    }
    const bool is_of_others = family_of(header.kind) != MessageFamily::kRendezvous;
    const size_t num_before = num_delivered_;
    network_->receiver().on_message(header, {.bytes = bytes.data(), .num_bytes = bytes.size()});
    CHECK(!is_of_others || num_delivered_ == num_before + 1);
  }

  void on_message(const MessageHeader&, const Payload& payload) noexcept override {
    ++num_delivered_;
    if (payload.rendezvous != nullptr) held_.emplace_back(payload.rendezvous, payload.num_bytes);
  }
  void on_peer_lost(PeerId peer, Status reason) noexcept override {
    CHECK(!reason.ok() && peer < kNumPeers && !std::exchange(is_reported_[peer], true));
    is_lost_[peer] = true;
  }
  void on_refused(const char* what) noexcept override { CHECK(what != nullptr); }

  Input& input_;
  std::deque<Transfer> transfers_;  // must outlive the transport
  std::unique_ptr<RailTransport> transport_;
  FuzzNetwork* network_ = nullptr;
  uint64_t name_ = 0;
  std::deque<std::pair<void*, size_t>> held_;
  bool is_lost_[kNumPeers]{};
  bool is_reported_[kNumPeers]{};
  size_t num_delivered_ = 0;
};

}  // namespace
}  // namespace axon::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  axon::Input input(data, num_bytes);
  axon::transport::Player player(input);
  for (int i = 0; i < axon::transport::kMostActions && !input.is_over(); ++i) player.act();
  return 0;
}
