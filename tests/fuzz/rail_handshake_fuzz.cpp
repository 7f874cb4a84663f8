// Fuzzes the frames of a rail's handshake. No bytes establish it for a process that does not know the token.
#include <algorithm>

#include "fuzz.hpp"
#include "transport/rails/rail_handshake.hpp"

namespace axon::transport {
namespace {

void play(RailHandshake handshake, Input& input) {
  while (!input.is_over() && handshake.state() == RailHandshake::State::kRunning) {
    std::vector<std::byte> bytes(std::min<size_t>(1 + input.take<uint8_t>(), handshake.num_wanted() + 1));
    for (std::byte& byte : bytes) byte = input.take<std::byte>();
    const bool is_too_long = bytes.size() > handshake.num_wanted();
    handshake.feed(bytes);
    CHECK(!is_too_long || handshake.state() == RailHandshake::State::kFailed);
    CHECK(handshake.take_output().size() <= sizeof(Digest));
  }
  CHECK(handshake.state() != RailHandshake::State::kEstablished);
}

}  // namespace
}  // namespace axon::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using axon::transport::RailHandshake;
  axon::Input input(data, num_bytes);
  const axon::transport::RailToken token{std::byte{0x5E}, std::byte{0xC2}, std::byte{0xE7}};
  const axon::Nonce nonce{std::byte{9}};
  if (input.take<uint8_t>() % 2 == 0) {
    axon::transport::play(RailHandshake::listener(token, nonce), input);
  } else {
    RailHandshake connector = RailHandshake::connector(token, 1, 2, nonce);
    (void)connector.take_output();
    axon::transport::play(std::move(connector), input);
  }
  return 0;
}
