// The names of the latest transports that were lost or given up. A rail that such a transport opens later is closed. An
// older one is forgotten: most have ended, and a rail of one that has not carries nothing that is expected.
//
//   names.insert(name);
//   if (names.contains(name)) …
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_set>

namespace axon::transport {

class RecentNames {
 public:
  static constexpr size_t kMost = 1024;

  void insert(uint64_t name) {
    erase(name);
    names_.insert(name);
    in_order_.push_back(name);
    if (in_order_.size() <= kMost) return;
    names_.erase(in_order_.front());
    in_order_.pop_front();
  }
  void erase(uint64_t name) {
    if (names_.erase(name) != 0) in_order_.erase(std::ranges::find(in_order_, name));
  }
  bool contains(uint64_t name) const noexcept { return names_.contains(name); }

 private:
  std::unordered_set<uint64_t> names_;
  std::deque<uint64_t> in_order_;  // the same, the oldest first
};

}  // namespace axon::transport
