// Shared code of the fuzz targets. A target states its invariants with CHECK, which aborts the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <type_traits>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes);

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                  \
    }                                                                                \
  } while (false)

namespace axon {

// Takes values from the input, and zeros after its end.
class Input {
 public:
  Input(const uint8_t* data, size_t num_bytes) noexcept : left_(data, num_bytes) {}

  bool is_over() const noexcept { return left_.empty(); }

  template <typename T>
    requires std::is_trivially_copyable_v<T>
  T take() noexcept {
    T value{};
    const size_t num_taken = left_.size() < sizeof value ? left_.size() : sizeof value;
    std::memcpy(static_cast<void*>(&value), left_.data(), num_taken);
    left_ = left_.subspan(num_taken);
    return value;
  }

  std::span<const uint8_t> rest() const noexcept { return left_; }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace axon
