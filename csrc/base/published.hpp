// The latest value that one thread at a time publishes, for other threads to copy. A sequence lock: publishing costs
// two stores more than the copy and never waits; a reader retries if a value was published meanwhile.
//
//   launched_.publish(record);                    // one thread at a time
//   const CallRecord record = launched_.read();   // any thread
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "base/sync.hpp"

namespace axon {

template <typename T>
  requires std::is_trivially_copyable_v<T>
class Published {
 public:
  explicit Published(const T& initial = T()) noexcept { publish(initial); }

  // One thread at a time.
  void publish(const T& value) noexcept {
    Words words{};
    std::memcpy(words.data(), &value, sizeof value);
    const uint64_t version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);  // ordered before the words, since each is a release store
    for (size_t i = 0; i < words.size(); ++i) words_[i].store(words[i], std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }

  // Any thread. Yields, in case the publisher has lost its core during a copy.
  T read() const noexcept {
    for (;; sync::yield()) {
      const uint64_t version = version_.load(std::memory_order_acquire);
      if (version % 2 != 0) continue;
      Words words;
      for (size_t i = 0; i < words.size(); ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (version_.load(std::memory_order_relaxed) != version) continue;  // ordered after the words' acquire loads
      T value;
      std::memcpy(static_cast<void*>(&value), words.data(), sizeof value);
      return value;
    }
  }

 private:
  using Words = std::array<uint64_t, (sizeof(T) + 7) / 8>;

  sync::atomic<uint64_t> version_{0};  // odd: being published
  std::array<sync::atomic<uint64_t>, std::tuple_size_v<Words>> words_{};
};

}  // namespace axon
