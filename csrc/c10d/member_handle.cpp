#include "c10d/member_handle.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "base/hexadecimal.hpp"

namespace axon::c10d_backend {

static constexpr std::string_view kPrefix = "axon:";
static constexpr size_t kNumRankDigits = 7;  // with leading zeros, so that texts sort as numbers

static std::optional<std::vector<uint8_t>> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::vector<uint8_t> bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char* digits = text.data() + 2 * i;
    if (std::from_chars(digits, digits + 2, bytes[i], 16).ptr != digits + 2) return std::nullopt;
  }
  return bytes;
}

std::string MemberHandle::encode() const {
  std::string rank = std::to_string(global_rank);
  rank.insert(0, kNumRankDigits - std::min(kNumRankDigits, rank.size()), '0');
  return std::string(kPrefix) + rank + ":" + host + ":" + to_hex(address.encode());
}

Result<MemberHandle> MemberHandle::decode(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    static constexpr size_t kMostShown = 40;
    const std::string shown = text.size() > kMostShown ? text.substr(0, kMostShown) + "…" : text;
    return Status(ErrorCode::kInvalidArgument, "'" + shown + "' is not a handle of torch_axon: " + why);
  };
  const std::string_view all = text;
  if (!all.starts_with(kPrefix)) return refuse("it does not begin with '" + std::string(kPrefix) + "'");
  const size_t host_at = all.find(':', kPrefix.size());
  const size_t address_at = host_at == std::string_view::npos ? host_at : all.find(':', host_at + 1);
  if (address_at == std::string_view::npos) return refuse("it has fewer than three colons");
  MemberHandle handle;
  const char* rank_end = text.data() + host_at;
  const auto parsed = std::from_chars(text.data() + kPrefix.size(), rank_end, handle.global_rank);
  if (parsed.ec != std::errc() || parsed.ptr != rank_end || handle.global_rank < 0) {
    return refuse("its rank is not a number from 0 up");
  }
  handle.host = all.substr(host_at + 1, address_at - host_at - 1);
  const std::optional<std::vector<uint8_t>> blob = from_hex(all.substr(address_at + 1));
  if (!blob) return refuse("its address does not consist of pairs of hexadecimal digits");
  Result<engine::PeerAddress> address = engine::PeerAddress::decode(*blob);
  if (!address.ok()) return refuse(address.status().message());
  handle.address = std::move(address).value();
  return handle;
}

std::string MemberHandle::describe() const {
  return "process " + std::to_string(address.pid) + " on " + host;
}

std::string own_host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name.front() == '\0') return "unknown host";
  std::string text(name.data());
  std::ranges::replace(text, ':', '_');
  return text;
}

}  // namespace axon::c10d_backend
