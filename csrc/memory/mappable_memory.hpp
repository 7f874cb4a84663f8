// Host memory that other processes of this host map, to read and write it by themselves (memory/mapped_memory.hpp).
//
//   std::shared_ptr<MappableMemory> memory = MappableMemory::make(num_bytes).value();
//   std::shared_ptr<MappableMemory> of = MappableMemory::around(address, num_bytes);   // null for other memory
//
// A page of words precedes the memory in its file. The first one is a random number, by which a peer knows this file
// from another one that has taken over its descriptor. The others are flags, which peers read beside the memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace axon {

// Installed headers of this folder include no others.
template <typename T>
class Result;
class SharedPages;

/// Page-aligned memory of the host, zero-initialised, that peers of this host map when they open a region of it.
class MappableMemory {
 public:
  /// Allocates memory, of which each page is taken when it is first used. Any thread.
  /// @param num_bytes at least 1
  /// @return the memory, which its users and the regions of it share; kResourceExhausted if there is none left
  static Result<std::shared_ptr<MappableMemory>> make(size_t num_bytes);

  // For make().
  MappableMemory(SharedPages pages, size_t num_bytes);
  ~MappableMemory();
  MappableMemory(const MappableMemory&) = delete;
  MappableMemory& operator=(const MappableMemory&) = delete;

  /// @return its bytes, valid as long as this object
  std::span<std::byte> bytes() const noexcept;

  // For one-sided transfers; any thread.

  static constexpr size_t kHeadNumBytes = 4096;  // of the words that precede the memory
  static constexpr size_t kNumWords = kHeadNumBytes / sizeof(uint64_t);

  // Tells a peer where it finds the memory.
  struct Location {
    uint64_t address = 0;    // of the first byte of the file, in this process
    uint64_t num_bytes = 0;  // of the file
    uint64_t proof = 0;      // the first word of the file
    int32_t descriptor = -1;
    uint32_t flag = 0;  // the number of a region's flag
  };
  Location location(uint32_t flag = 0) const noexcept;
  // Returns the memory that contains a range, or null. A forked child finds none.
  static std::shared_ptr<MappableMemory> around(uint64_t address, uint64_t num_bytes);
  // Returns the number of an unused flag, from 1 on, or 0 if there is none.
  uint32_t take_flag();
  void give_back(uint32_t flag);
  std::atomic<uint64_t>& flag(uint32_t number) const noexcept;

 private:
  const std::unique_ptr<SharedPages> pages_;
  const size_t num_bytes_;
  const uint64_t proof_;
  std::mutex mutex_;  // guards the following member
  std::vector<uint32_t> unused_flags_;
};
static_assert(sizeof(MappableMemory::Location) == 32);
static_assert(std::atomic<uint64_t>::is_always_lock_free);  // processes share the words

}  // namespace axon
