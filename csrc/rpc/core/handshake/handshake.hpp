// One end of a handshake, without its socket: bytes in, bytes out.
//
//   connector → hello: a nonce
//             ← hello: a nonce
//             → proof: that it knows the secret
//             ← proof: that it knows the secret; which listener it is
//             → endpoint info, or the end: the connector has a connection to this runtime
//             ← endpoint info
//
// A proof, and the seal of an endpoint info, is an HMAC with the secret. It covers the role of its sender and all bytes
// of the handshake so far in both directions, so replayed bytes prove nothing. A refusal with its reason may replace
// any frame. Each end sends one frame and then waits. More bytes than the next frame needs are an error, as is every
// other violation. Bytes: docs/wire.md. Nothing is encrypted.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/nonce.hpp"
#include "base/sha256.hpp"
#include "base/status.hpp"
#include "rpc/core/handshake/endpoint_info.hpp"
#include "rpc/core/handshake/secret.hpp"

namespace axon::rpc {

static constexpr uint16_t kHandshakeVersion = 2;

// Tells connectors, before they connect, whether they are connected already.
struct ListenerIdentity {
  static constexpr size_t kMostBytes = 512;

  uint64_t incarnation = 0;  // of its runtime
  std::string place;         // of which the key of its addresses is derived, see address_key_of()
};

// How a handshake ended.
enum class HandshakeOutcome : uint8_t { kEstablished, kMalformed, kOtherVersion, kWrongSecret, kRefused };

class Handshake {
 public:
  static constexpr size_t kMostFrameBytes = 16384;
  static constexpr size_t kMostReasonBytes = 512;

  // The connector has output at once. Fails if the endpoint info cannot be sent.
  static Result<Handshake> connector(const Secret& secret, const EndpointInfo& own, const Nonce& nonce);
  // The connector must know one of the secrets; that one seals the rest of the handshake.
  static Handshake listener(std::vector<Secret> secrets, const Nonce& nonce, ListenerIdentity identity);

  // Returns the bytes to send, once.
  std::vector<std::byte> take_output() noexcept { return std::exchange(output_, {}); }

  // Takes bytes from the other end, in chunks of any size.
  void feed(std::span<const std::byte> bytes);

  // The listener, once it has proved that it knows the secret. Its connector may stop here.
  const std::optional<ListenerIdentity>& listener() const noexcept { return listener_; }
  // Returns whether the other end has proved that it knows the secret.
  bool is_proved() const noexcept { return expected_ == Kind::kEndpointInfo; }

  // The endpoint info of the other end, once it has arrived.
  const std::optional<EndpointInfo>& peer() const noexcept { return peer_; }
  // The listener then calls one of these. An endpoint info that cannot be sent becomes a refusal.
  void answer(const EndpointInfo& own);
  void refuse(Status why);

  // Empty while the handshake goes on. reason() describes a failure for this end's user.
  std::optional<HandshakeOutcome> outcome() const noexcept { return outcome_; }
  const Status& reason() const noexcept { return reason_; }

 private:
  enum class Role : char { kConnector = 'c', kListener = 'l' };
  enum class Kind : uint8_t { kHello = 1, kProof, kEndpointInfo, kRefusal };
  struct Prefix;

  Handshake(Role role, std::vector<Secret> secrets) : role_(role), secrets_(std::move(secrets)) {}

  void on_frame(Kind kind, const std::vector<std::byte>& frame);
  void on_hello();
  void on_proof(std::span<const std::byte> content);
  void on_endpoint_info(std::span<const std::byte> content);
  void on_refusal(std::span<const std::byte> content);

  void end(HandshakeOutcome outcome, Status reason);
  void end_malformed(const char* what);
  void end_other_version(uint16_t version);

  void send(Kind kind, std::span<const std::byte> content);
  Digest seal_of(Role sender) const noexcept;
  bool is_sealed_by_peer(std::span<const std::byte> seal) noexcept;
  Role peers_role() const noexcept { return role_ == Role::kConnector ? Role::kListener : Role::kConnector; }

  Role role_;
  std::vector<Secret> secrets_;
  size_t shared_ = 0;                    // index of the secret that the peer knows, from its proof on
  Nonce nonce_{};                        // the listener's
  std::vector<std::byte> encoded_info_;  // the connector's, encoded
  std::optional<ListenerIdentity> listener_;
  std::optional<EndpointInfo> peer_;
  Kind expected_ = Kind::kHello;
  std::vector<std::byte> input_;       // an incomplete frame
  std::vector<std::byte> transcript_;  // all earlier bytes, in both directions
  std::vector<std::byte> output_;
  std::optional<HandshakeOutcome> outcome_;
  Status reason_;
};

}  // namespace axon::rpc
