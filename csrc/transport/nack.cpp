#include "transport/nack.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

namespace axon::nack {

// Returns the longest prefix of at most `most` bytes that does not split a UTF-8 character.
static std::string_view cut(std::string_view text, size_t most) noexcept {
  if (text.size() <= most) return text;
  const auto continues = [&](size_t i) { return (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80; };
  while (most != 0 && continues(most)) --most;
  return text.substr(0, most);
}

Encoded::Encoded(const Status& why) noexcept {
  if (why.ok()) return;
  const std::string_view text = cut(why.message(), kMostBytes - 1);
  bytes_[0] = static_cast<std::byte>(why.code());
  std::memcpy(bytes_.data() + 1, text.data(), text.size());
  num_bytes_ = 1 + text.size();
}

Status decode(std::span<const std::byte> bytes) {
  if (bytes.empty()) return {ErrorCode::kAborted, "its receiver no longer needs it"};
  const auto text = bytes.subspan(1, std::min(bytes.size(), Encoded::kMostBytes) - 1);
  const bool is_mismatch = bytes.front() == static_cast<std::byte>(ErrorCode::kMismatch);
  return {is_mismatch ? ErrorCode::kMismatch : ErrorCode::kAborted,
          std::string(reinterpret_cast<const char*>(text.data()), text.size())};
}

}  // namespace axon::nack
