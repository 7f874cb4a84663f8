#include "transport/rails/rail_handshake.hpp"

#include <algorithm>
#include <cstring>

namespace axon::transport {

RailToken random_token() {
  const Nonce nonce = random_nonce();
  RailToken token;
  std::copy_n(nonce.begin(), token.size(), token.begin());
  return token;
}

RailHandshake RailHandshake::connector(const RailToken& token, uint64_t name, uint32_t rail, const Nonce& nonce) {
  RailHandshake handshake(Role::kConnector, token, nonce);
  handshake.hello_.name = name;
  handshake.hello_.rail = rail;
  handshake.hello_.nonce = nonce;
  handshake.send(std::as_bytes(std::span(&handshake.hello_, 1)));
  return handshake;
}

RailHandshake RailHandshake::listener(const RailToken& token, const Nonce& nonce) {
  return {Role::kListener, token, nonce};
}

size_t RailHandshake::num_wanted() const noexcept {
  if (state_ != State::kRunning) return 0;
  const size_t opening = role_ == Role::kListener ? sizeof(Hello) : sizeof(Nonce);
  return (has_opened_ ? sizeof(Digest) : opening) - input_.size();
}

void RailHandshake::feed(std::span<const std::byte> bytes) {
  if (bytes.size() > num_wanted()) {
    state_ = State::kFailed;
    return;
  }
  input_.insert(input_.end(), bytes.begin(), bytes.end());
  if (state_ != State::kRunning || num_wanted() != 0) return;
  const std::vector<std::byte> frame = std::exchange(input_, {});
  if (std::exchange(has_opened_, true)) return on_proof(frame);
  transcript_.insert(transcript_.end(), frame.begin(), frame.end());
  role_ == Role::kListener ? on_hello(frame) : on_challenge(frame);
}

void RailHandshake::on_hello(std::span<const std::byte> frame) {
  std::memcpy(&hello_, frame.data(), sizeof hello_);
  const Hello expected;
  if (hello_.magic != expected.magic || hello_.version != expected.version || hello_.reserved != 0) {
    state_ = State::kFailed;
    return;
  }
  send(nonce_);
}

void RailHandshake::on_challenge(std::span<const std::byte> /*frame*/) {
  const Digest proof = seal(static_cast<char>(role_));
  output_.insert(output_.end(), proof.begin(), proof.end());
}

void RailHandshake::on_proof(std::span<const std::byte> frame) {
  const Role other = role_ == Role::kListener ? Role::kConnector : Role::kListener;
  const bool knows_token = equal_in_secret(seal(static_cast<char>(other)), frame);
  state_ = knows_token ? State::kEstablished : State::kFailed;
  if (!knows_token || role_ == Role::kConnector) return;
  const Digest proof = seal(static_cast<char>(role_));
  output_.insert(output_.end(), proof.begin(), proof.end());
}

void RailHandshake::send(std::span<const std::byte> frame) {
  transcript_.insert(transcript_.end(), frame.begin(), frame.end());
  output_.insert(output_.end(), frame.begin(), frame.end());
}

Digest RailHandshake::seal(char purpose) const noexcept {
  return HmacSha256(token_).add(std::as_bytes(std::span(&purpose, 1))).add(transcript_).finish();
}

}  // namespace axon::transport
