// Fuzzes a handshake whose bytes an attacker may change, cut, repeat or invent. Both ends connect only if each received
// what the other sent. The target also parses the bytes of a handshake, and those from a user, on their own.
#include "rpc/core/handshake/handshake.hpp"

#include <algorithm>

#include "fuzz.hpp"
#include "rpc/core/handshake/listener_address.hpp"

namespace axon::rpc {
namespace {

using Bytes = std::vector<std::byte>;
constexpr int kMostActions = 40;

const Secret& secret() {
  static const Secret secret = Secret::from(Bytes(32, std::byte{7})).value();
  return secret;
}

EndpointInfo named(const char* name, uint64_t key) {
  return {.name = name, .incarnation = 1, .key = key, .address = {std::byte{1}}};
}

class Wire {
 public:
  explicit Wire(Input& input) : input_(input) { carry(connector_, to_listener_); }

  void act() {
    const auto action = input_.take<uint8_t>();
    const bool forth = action % 2 == 0;
    Bytes& bytes = forth ? to_listener_ : to_connector_;
    switch (action / 2 % 5) {
      case 0:
        change(bytes);
        break;
      case 1:
        bytes.resize(input_.take<uint8_t>());
        changed_ = true;
        break;
      case 2:
        if (!heard_.empty()) bytes = heard_[input_.take<uint8_t>() % heard_.size()];
        changed_ = true;
        break;
      default:
        deliver(forth);
    }
  }

  void check() const {
    if (connector_.outcome() == HandshakeOutcome::kEstablished) {
      CHECK(connector_.peer() == named("listener", 2) && listener_.outcome() == HandshakeOutcome::kEstablished);
    }
    if (connector_.is_proved()) {
      CHECK(connector_.listener()->incarnation == 2 && connector_.listener()->place == "listener:1");
    }
    if (listener_.outcome() == HandshakeOutcome::kEstablished) CHECK(listener_.peer() == named("connector", 1));
    if (!changed_)
      CHECK(connector_.outcome().value_or(HandshakeOutcome::kEstablished) == HandshakeOutcome::kEstablished);
    if (listener_.outcome() == HandshakeOutcome::kMalformed) CHECK(!listener_.reason().ok());
  }

 private:
  void change(Bytes& bytes) {
    if (bytes.empty()) return;
    const auto change = std::max(input_.take<std::byte>(), std::byte{1});
    bytes[input_.take<uint16_t>() % bytes.size()] ^= change;
    changed_ = true;
  }

  void deliver(bool forth) {
    Bytes& bytes = forth ? to_listener_ : to_connector_;
    const size_t num_bytes = std::min<size_t>(bytes.size(), input_.take<uint16_t>());
    const Bytes piece(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(num_bytes));
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(num_bytes));
    Handshake& end = forth ? listener_ : connector_;
    end.feed(piece);
    if (forth && end.peer() && !end.outcome()) end.answer(named("listener", 2));
    carry(end, forth ? to_connector_ : to_listener_);
  }

  void carry(Handshake& from, Bytes& to) {
    const Bytes output = from.take_output();
    if (output.empty()) return;
    heard_.push_back(output);
    to.insert(to.end(), output.begin(), output.end());
  }

  Input& input_;
  Handshake connector_ = Handshake::connector(secret(), named("connector", 1), Nonce{std::byte{1}}).value();
  Handshake listener_ = Handshake::listener({secret()}, Nonce{std::byte{2}}, {.incarnation = 2, .place = "listener:1"});
  Bytes to_listener_, to_connector_;
  std::vector<Bytes> heard_;
  bool changed_ = false;
};

void decode(std::span<const std::byte> bytes) {
  if (Result<EndpointInfo> info = EndpointInfo::decode(bytes); info.ok()) {
    CHECK(std::ranges::equal(info.value().encode().value(), bytes));
  }
  if (Result<ListenerAddress> decoded = ListenerAddress::decode(bytes); decoded.ok()) {
    CHECK(std::ranges::equal(decoded.value().encode(), bytes));
  }
}

}  // namespace
}  // namespace axon::rpc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace axon::rpc;
  axon::Input input(data, num_bytes);
  if (input.take<uint8_t>() % 2 == 0) {
    decode(std::as_bytes(input.rest()));
    return 0;
  }
  Wire wire(input);
  for (int i = 0; i < kMostActions && !input.is_over(); ++i) {
    wire.act();
    wire.check();
  }
  return 0;
}
