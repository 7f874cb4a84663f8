#include "rpc/core/handshake/secret.hpp"

#include <string.h>

#include <string>

#include "base/nonce.hpp"
#include "base/sha256.hpp"

namespace axon::rpc {

Result<Secret> Secret::from(std::span<const std::byte> bytes) {
  if (bytes.size() < kFewestBytes || bytes.size() > kMostBytes) {
    return Status(ErrorCode::kInvalidArgument, "a secret of " + std::to_string(bytes.size()) +
                                                   " bytes; allowed: " + std::to_string(kFewestBytes) + " to " +
                                                   std::to_string(kMostBytes) + ", drawn at random");
  }
  return Secret({bytes.begin(), bytes.end()});
}

Secret Secret::random() {
  const Nonce nonce = random_nonce();
  return Secret({nonce.begin(), nonce.end()});
}

Secret Secret::derive(std::string_view purpose) const {
  const Digest derived = HmacSha256(bytes_).add(std::as_bytes(std::span(purpose))).finish();
  return Secret({derived.begin(), derived.end()});
}

Secret::~Secret() {
  if (!bytes_.empty()) explicit_bzero(bytes_.data(), bytes_.size());
}

}  // namespace axon::rpc
