// Fuzzes headers of stripes, in any order, while messages are expected, cancelled and completed. Memory is written only
// inside the buffers of messages that are expected, and never after a message has ended.
#include <deque>
#include <utility>
#include <vector>

#include "fuzz.hpp"
#include "transport/rails/incoming_stripes.hpp"
#include "transport/rails/rail_address.hpp"

namespace axon::transport {
namespace {

constexpr int kMostActions = 200;
constexpr std::byte kUntouched{0x5A};
constexpr std::byte kReceived{0xA5};
constexpr size_t kMargin = 64;

struct Message {
  uint64_t ticket;
  uint64_t sender;
  size_t stripe_num_bytes;
  std::vector<std::byte> bytes;
  bool has_ended = false;
};

class Player {
 public:
  explicit Player(Input& input) : input_(input) { CHECK(events_.open().ok()); }

  ~Player() {
    for (const Message& message : messages_) {
      for (size_t i = message.bytes.size() - kMargin; i < message.bytes.size(); ++i)
        CHECK(message.bytes[i] == kUntouched);
    }
  }

  void act() {
    switch (input_.take<uint8_t>() % 4) {
      case 0:
        return expect();
      case 1:
        return cancel();
      default:
        return hear();
    }
  }

 private:
  void expect() {
    const size_t length = 1 + input_.take<uint32_t>() % (3 * kLeastStripeBytes);
    Message& message = messages_.emplace_back(
        Message{messages_.size() + 1, input_.take<uint8_t>() % 2u, kLeastStripeBytes, {}, false});
    message.bytes.assign(length + kMargin, kUntouched);
    incoming_.expect(message.ticket, {.into = {.data = message.bytes.data(), .num_bytes = length},
                                      .sender = message.sender,
                                      .stripe_num_bytes = message.stripe_num_bytes});
  }

  void cancel() {
    if (messages_.empty()) return;
    Message& message = messages_[input_.take<uint8_t>() % messages_.size()];
    incoming_.cancel(message.ticket);
    message.has_ended = true;
  }

  StripeHeader take_header() {
    auto header = input_.take<StripeHeader>();
    const auto chosen = input_.take<uint8_t>();
    if (chosen % 8 == 0 || messages_.empty()) return header;
    const Message& message = messages_[header.ticket % messages_.size()];
    header.ticket = message.ticket;
    if (chosen % 8 > 1) header.offset = header.offset % 4 * kLeastStripeBytes;
    const size_t total = message.bytes.size() - kMargin;
    if (chosen % 8 > 2 && header.offset < total) {
      header.num_bytes = static_cast<uint32_t>(std::min(kLeastStripeBytes, total - header.offset));
    }
    if (chosen % 8 > 3) header.format = chosen / 8 % 3;
    if (chosen % 8 > 4) header.num_carried = header.num_bytes;
    return header;
  }

  // As RailReader receives a stripe, in two parts.
  void hear() {
    const StripeHeader header = take_header();
    const uint64_t sender = input_.take<uint8_t>() % 2;
    if (!incoming_.is_valid(sender, header)) return;
    CHECK(header.num_carried <= header.num_bytes + 8 * (1 + header.num_bytes / 8192));
    bool is_whole = true;
    const size_t half = header.num_bytes / 2;  // 0 for a stripe of one byte
    for (const auto& [num_here, end] : {std::pair(size_t{0}, half), std::pair(half, size_t{header.num_bytes})}) {
      const StripeMemory memory = incoming_.open(sender, header, num_here);
      is_whole &= static_cast<bool>(memory);
      if (!memory) continue;
      Message& message = messages_[header.ticket - 1];
      CHECK(!message.has_ended && message.sender == sender);
      CHECK(memory.data() == message.bytes.data() + header.offset + num_here);
      std::memset(memory.data(), static_cast<int>(kReceived), end - num_here);
    }
    if (is_whole) incoming_.arrived(header);
    for (const RailEvent& event : events_.take()) end(event);
  }

  void end(const RailEvent& event) {
    CHECK(event.kind == RailEvent::Kind::kArrived);
    Message& message = messages_.at(event.ticket - 1);
    CHECK(!std::exchange(message.has_ended, true));
    for (size_t i = 0; i < message.bytes.size() - kMargin; ++i) CHECK(message.bytes[i] == kReceived);
  }

  Input& input_;
  RailEvents events_;
  IncomingStripes incoming_{events_};
  std::deque<Message> messages_;
};

}  // namespace
}  // namespace axon::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const auto bytes = std::as_bytes(std::span(data, num_bytes));
  if (const auto address = axon::transport::RailAddress::decode(bytes); address.ok()) {
    CHECK(address.value().encode() == std::vector<std::byte>(bytes.begin(), bytes.end()));
  }
  axon::Input input(data, num_bytes);
  axon::transport::Player player(input);
  for (int i = 0; i < axon::transport::kMostActions && !input.is_over(); ++i) player.act();
  return 0;
}
