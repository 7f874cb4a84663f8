#include "rpc/core/handshake/handshake.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

namespace axon::rpc {

// Precedes every frame, in every version.
struct Handshake::Prefix {
  std::array<char, 4> magic{'a', 'x', 'h', 's'};
  uint16_t version = kHandshakeVersion;
  Kind kind{};
  uint8_t reserved = 0;
  uint32_t num_bytes = 0;  // following bytes
};

static void append(std::vector<std::byte>& bytes, std::span<const std::byte> more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

// Makes text safe for errors and logs: its author is not authenticated yet.
static std::string printable(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    const auto character = std::to_integer<char>(byte);
    text += character >= ' ' && character <= '~' ? character : '?';
  }
  return text;
}

static std::vector<std::byte> encode(const ListenerIdentity& identity) {
  std::vector<std::byte> bytes;
  append(bytes, std::as_bytes(std::span(&identity.incarnation, 1)));
  append(bytes, std::as_bytes(std::span(identity.place)));
  return bytes;
}

static std::optional<ListenerIdentity> decode_identity(std::span<const std::byte> bytes) {
  ListenerIdentity identity;
  constexpr size_t kNumBytes = sizeof identity.incarnation;
  if (bytes.size() < kNumBytes || bytes.size() > ListenerIdentity::kMostBytes) return std::nullopt;
  std::memcpy(&identity.incarnation, bytes.data(), kNumBytes);
  identity.place.assign(reinterpret_cast<const char*>(bytes.data()) + kNumBytes, bytes.size() - kNumBytes);
  return identity;
}

Result<Handshake> Handshake::connector(const Secret& secret, const EndpointInfo& own, const Nonce& nonce) {
  Result<std::vector<std::byte>> info = own.encode();
  if (!info.ok()) return std::move(info.status());
  Handshake handshake(Role::kConnector, {secret});
  handshake.encoded_info_ = std::move(info).value();
  handshake.send(Kind::kHello, nonce);
  return handshake;
}

Handshake Handshake::listener(std::vector<Secret> secrets, const Nonce& nonce, ListenerIdentity identity) {
  Handshake handshake(Role::kListener, std::move(secrets));
  handshake.nonce_ = nonce;
  handshake.listener_ = std::move(identity);
  return handshake;
}

void Handshake::feed(std::span<const std::byte> bytes) {
  if (outcome_) return;
  append(input_, bytes);
  Prefix prefix;
  static_assert(sizeof prefix == 12);
  if (input_.size() < sizeof prefix) return;
  std::memcpy(&prefix, input_.data(), sizeof prefix);
  if (prefix.magic != Prefix{}.magic) return end_malformed("not torch_axon");
  if (prefix.version != kHandshakeVersion) return end_other_version(prefix.version);
  const bool refused = role_ == Role::kConnector && prefix.kind == Kind::kRefusal;
  if ((prefix.kind != expected_ && !refused) || prefix.reserved != 0) return end_malformed("unexpected frame");
  if (prefix.num_bytes > kMostFrameBytes) return end_malformed("frame too long");
  const size_t num_frame_bytes = sizeof prefix + prefix.num_bytes;
  if (input_.size() > num_frame_bytes) return end_malformed("more than one frame at a time");
  if (input_.size() == num_frame_bytes) on_frame(prefix.kind, std::exchange(input_, {}));
}

void Handshake::on_frame(Kind kind, const std::vector<std::byte>& frame) {
  const auto content = std::span(frame).subspan(sizeof(Prefix));
  if (kind == Kind::kRefusal) return on_refusal(content);
  if (kind == Kind::kHello) {
    if (content.size() != sizeof(Nonce)) return end_malformed("wrong length of a nonce");
    append(transcript_, frame);
    return on_hello();
  }
  if (content.size() < sizeof(Digest)) return end_malformed("truncated");
  const auto seal = content.last(sizeof(Digest));
  append(transcript_, std::span(frame).first(frame.size() - seal.size()));
  if (!is_sealed_by_peer(seal)) {
    return end(HandshakeOutcome::kWrongSecret, {ErrorCode::kUnauthenticated, "the secrets of the two ends differ"});
  }
  append(transcript_, seal);
  const auto sealed = content.first(content.size() - seal.size());
  kind == Kind::kProof ? on_proof(sealed) : on_endpoint_info(sealed);
}

void Handshake::on_hello() {
  if (role_ == Role::kListener) send(Kind::kHello, nonce_);
  if (role_ == Role::kConnector) send(Kind::kProof, {});
  expected_ = Kind::kProof;
}

void Handshake::on_proof(std::span<const std::byte> content) {
  if (role_ == Role::kListener) {
    if (!content.empty()) return end_malformed("wrong length of a proof");
    send(Kind::kProof, encode(*listener_));
  } else {
    listener_ = decode_identity(content);
    if (!listener_) return end_malformed("wrong length of a proof");
    send(Kind::kEndpointInfo, encoded_info_);
  }
  expected_ = Kind::kEndpointInfo;
}

void Handshake::on_endpoint_info(std::span<const std::byte> content) {
  Result<EndpointInfo> info = EndpointInfo::decode(content);
  if (!info.ok()) return end(HandshakeOutcome::kMalformed, std::move(info.status()));
  peer_ = std::move(info).value();
  if (role_ == Role::kConnector) outcome_ = HandshakeOutcome::kEstablished;
}

void Handshake::on_refusal(std::span<const std::byte> content) {
  if (content.empty() || content.size() > 1 + kMostReasonBytes) return end_malformed("wrong length of a refusal");
  const auto code = std::to_integer<uint8_t>(content[0]);
  const bool is_known =
      code <= static_cast<uint8_t>(ErrorCode::kInternal) || static_cast<ErrorCode>(code) == ErrorCode::kUnauthenticated;
  if (!is_known) return end_malformed("unknown reason of a refusal");
  end(HandshakeOutcome::kRefused, {static_cast<ErrorCode>(code), printable(content.subspan(1))});
}

void Handshake::answer(const EndpointInfo& own) {
  Result<std::vector<std::byte>> info = own.encode();
  if (!info.ok()) return refuse(std::move(info.status()));
  send(Kind::kEndpointInfo, info.value());
  outcome_ = HandshakeOutcome::kEstablished;
}

void Handshake::refuse(Status why) {
  end(HandshakeOutcome::kRefused, std::move(why));
}

// Foreign bytes get no answer; a peer that speaks this protocol is told the reason.
void Handshake::end(HandshakeOutcome outcome, Status reason) {
  outcome_ = outcome;
  reason_ = std::move(reason);
  if (role_ == Role::kConnector || outcome == HandshakeOutcome::kMalformed) return;
  std::vector<std::byte> content{static_cast<std::byte>(reason_.code())};
  append(content,
         std::as_bytes(std::span(reason_.message())).first(std::min(reason_.message().size(), kMostReasonBytes)));
  send(Kind::kRefusal, content);
}

void Handshake::end_malformed(const char* what) {
  end(HandshakeOutcome::kMalformed, {ErrorCode::kTransport, std::string("not a torch_axon handshake: ") + what});
}

void Handshake::end_other_version(uint16_t version) {
  end(HandshakeOutcome::kOtherVersion,
      {ErrorCode::kMismatch, "it speaks handshake version " + std::to_string(version) + ", this process " +
                                 std::to_string(kHandshakeVersion) + ": install the same torch_axon on both sides"});
}

void Handshake::send(Kind kind, std::span<const std::byte> content) {
  const bool sealed = kind == Kind::kProof || kind == Kind::kEndpointInfo;
  const Prefix prefix{.kind = kind, .num_bytes = static_cast<uint32_t>(content.size() + (sealed ? sizeof(Digest) : 0))};
  std::vector<std::byte> frame;
  append(frame, std::as_bytes(std::span(&prefix, 1)));
  append(frame, content);
  append(transcript_, frame);
  if (sealed) {
    const Digest seal = seal_of(role_);
    append(frame, seal);
    append(transcript_, seal);
  }
  append(output_, frame);
}

// The first seal of the peer, in its proof, shows which of the listener's secrets it knows.
bool Handshake::is_sealed_by_peer(std::span<const std::byte> seal) noexcept {
  const size_t first = expected_ == Kind::kProof ? 0 : shared_;
  const size_t end = expected_ == Kind::kProof ? secrets_.size() : shared_ + 1;
  for (shared_ = first; shared_ < end; ++shared_) {
    if (equal_in_secret(seal_of(peers_role()), seal)) return true;
  }
  shared_ = first;
  return false;
}

Digest Handshake::seal_of(Role sender) const noexcept {
  return HmacSha256(secrets_[shared_].bytes()).add(std::as_bytes(std::span(&sender, 1))).add(transcript_).finish();
}

}  // namespace axon::rpc
