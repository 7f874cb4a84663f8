// Reads memory of another process of this host with one copy in the kernel, and says whether it was exposed all along.
//
//   DirectRead read(pid, {.address = flag_address, .value = flag_value});
//   while (read.has_room()) read.add(address, local, num_bytes);
//   switch (read.run()) …
//
// Progress owner only: a peer's request to end direct reads is answered between two of them.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace axon::rpc {

class DirectRead {
 public:
  enum class Outcome : uint8_t {
    kRead,
    kRevoked,     // the region is not exposed any more; what has been copied is invalid
    kUnreadable,  // the kernel cannot or may not read this memory
    kGone,        // the process has ended
  };
  static constexpr size_t kMostBlocks = 256;

  struct FlagLocation {
    uint64_t address = 0;
    uint64_t value = 0;
  };

  DirectRead(int32_t pid, FlagLocation flag) noexcept;
  bool has_room() const noexcept { return num_blocks_ < kMostBlocks; }
  void add(uint64_t address, std::byte* to, size_t num_bytes) noexcept;
  Outcome run() noexcept;

 private:
  const int32_t pid_;
  const FlagLocation flag_;
  size_t num_blocks_ = 0;
  size_t num_bytes_ = 0;
  uint64_t before_ = 0;
  uint64_t after_ = 0;
  std::array<iovec, kMostBlocks + 2> here_;
  std::array<iovec, kMostBlocks + 2> there_;
};

}  // namespace axon::rpc
