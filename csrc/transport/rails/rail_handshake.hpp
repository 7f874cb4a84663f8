// One end of a rail's handshake, without its socket: bytes in, bytes out.
//
//   connector → hello: its transport's name, the rail's index, a nonce
//             ← challenge: a nonce
//             → proof
//             ← proof
//
// A proof is an HMAC, keyed with the listener's token, over the role of its sender and all bytes before it, so replayed
// bytes prove nothing. The listener's proof admits the connector. All frames have fixed lengths (docs/wire.md), and any
// other byte ends the handshake. Nothing is encrypted.
//
//   RailHandshake handshake = RailHandshake::connector(token, name, rail, random_nonce());
//   send(socket, handshake.take_output());
//   handshake.feed(received);                 // at most num_wanted() bytes, until state() is final
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/nonce.hpp"
#include "base/sha256.hpp"

namespace axon::transport {

// The secret of a transport's rails, which only processes know that were given its address.
using RailToken = std::array<std::byte, 16>;

// The index of a rail that carries whole messages, both ways (transport/sockets). All others carry stripes.
inline constexpr uint32_t kMessageRail = UINT32_MAX;

RailToken random_token();

class RailHandshake {
 public:
  enum class State : uint8_t { kRunning, kEstablished, kFailed };

  // The connector has output at once.
  static RailHandshake connector(const RailToken& token, uint64_t name, uint32_t rail, const Nonce& nonce);
  static RailHandshake listener(const RailToken& token, const Nonce& nonce);

  State state() const noexcept { return state_; }
  // Returns whether the other end's first frame has arrived: a listener knows rail(), a connector has sent its proof.
  bool has_opened() const noexcept { return has_opened_; }
  // Returns how many bytes the other end's frame still lacks; 0 once the handshake has ended.
  size_t num_wanted() const noexcept;
  void feed(std::span<const std::byte> bytes);
  // Returns the bytes to send, once.
  std::vector<std::byte> take_output() noexcept { return std::exchange(output_, {}); }

  // The connector's name and rail, and the key of this rail's stripes. They are authentic once the handshake is
  // established.
  uint64_t name() const noexcept { return hello_.name; }
  uint32_t rail() const noexcept { return hello_.rail; }
  Digest stripe_key() const noexcept { return seal('s'); }

 private:
  enum class Role : char { kConnector = 'c', kListener = 'l' };

  struct Hello {
    std::array<char, 4> magic{'a', 'x', 'r', 'l'};
    uint32_t version = 2;
    uint64_t name = 0;
    uint32_t rail = 0;
    uint32_t reserved = 0;
    Nonce nonce{};
  };
  static_assert(sizeof(Hello) == 56);

  RailHandshake(Role role, const RailToken& token, const Nonce& nonce) noexcept
      : role_(role), token_(token), nonce_(nonce) {}

  void on_hello(std::span<const std::byte> frame);
  void on_challenge(std::span<const std::byte> frame);
  void on_proof(std::span<const std::byte> frame);
  void send(std::span<const std::byte> frame);
  Digest seal(char purpose) const noexcept;

  Role role_;
  RailToken token_;
  Nonce nonce_;  // ours
  Hello hello_;
  State state_ = State::kRunning;
  bool has_opened_ = false;            // the other end's first frame has arrived
  std::vector<std::byte> input_;       // an incomplete frame
  std::vector<std::byte> transcript_;  // hello and challenge
  std::vector<std::byte> output_;
};

}  // namespace axon::transport
