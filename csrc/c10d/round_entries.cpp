#include "c10d/round_entries.hpp"

#include <algorithm>

#include "base/log.hpp"

namespace axon::c10d_backend {

using namespace std::chrono_literals;

// Longer timeouts would overflow the clock.
static constexpr std::chrono::hours kLongestTimeout{24 * 365};

RoundEntries::RoundEntries(c10d::Store& store, int size, std::chrono::milliseconds timeout)
    : store_(store),
      prefix_("axon/" + std::to_string(size) + "/"),
      deadline_(std::chrono::steady_clock::now() + std::min<std::chrono::milliseconds>(timeout, kLongestTimeout)) {}

std::vector<std::string> RoundEntries::address_keys(int64_t round, int first_rank, int last_rank) const {
  std::vector<std::string> keys;
  for (int rank = first_rank; rank <= last_rank; ++rank) keys.push_back(address_key(round, rank));
  return keys;
}

Blob RoundEntries::get(const std::string& key) {
  store_.setTimeout(time_left());
  return store_.get(key);
}

int64_t RoundEntries::get_number(const std::string& key) {
  const Blob number = get(key);
  return std::stoll(std::string(number.begin(), number.end()));
}

// Without the extended calls, other ranks may replace values that were read first until the last one is there.
std::vector<Blob> RoundEntries::get_all(const std::vector<std::string>& keys) {
  if (store_.hasExtendedApi()) {
    store_.setTimeout(time_left());
    return store_.multiGet(keys);
  }
  await_all(keys);
  std::vector<Blob> values;
  for (const std::string& each : keys) values.push_back(get(each));
  return values;
}

// A store without the extended calls may be one in Python, which may lack wait(), too.
void RoundEntries::await_all(const std::vector<std::string>& keys) {
  if (store_.hasExtendedApi()) return store_.wait(keys, time_left());
  for (const std::string& each : keys) get(each);
}

void RoundEntries::set_all(const std::vector<std::string>& keys, const Blob& value) {
  if (store_.hasExtendedApi()) return store_.multiSet(keys, std::vector<Blob>(keys.size(), value));
  for (const std::string& each : keys) store_.set(each, value);
}

void RoundEntries::forget(const std::string& key) noexcept {
  try {
    store_.deleteKey(key);
  } catch (const std::exception&) {
    log::info("the store cannot delete '" + key + "'; the entry remains");
  }
}

std::chrono::milliseconds RoundEntries::time_left() const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
  return std::max<std::chrono::milliseconds>(left, 1ms);
}

}  // namespace axon::c10d_backend
