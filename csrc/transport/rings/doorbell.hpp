// Wakes another process on this host through a pipe that its owner reads, and a shared page that says whether to read
// it.
//
//   Result<RingDoorbell> mine = RingDoorbell::make(key);     // a process that knows the key may call
//   Result<WakeUpPipe> theirs = WakeUpPipe::open(address);   // through the descriptors of the other process
//   theirs.value().call({.key = address.key, …});            // never waits
//
// A call is written whole or not at all, even if a process is killed meanwhile. Any process that may access this one's
// descriptors can write into the pipe. Bytes that do not begin with the key are therefore ignored.
//
// A RingDoorbell owns the page and the pipe; a WakeUpPipe owns its mappings of both. The progress owner uses them, one
// thread at a time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/file_descriptor.hpp"
#include "memory/shared_pages.hpp"

namespace axon::transport {

// The address of a process that accepts rings, following the network's address. Key 0: it accepts none.
struct RingAddress {
  uint64_t key = 0;       // random; a process that knows it was given the address
  uint64_t identity = 0;  // address of the key in the process's memory, for processes that read it
  int32_t pid = 0;
  int32_t page = -1;  // descriptors of that process
  int32_t pipe = -1;
  int32_t reserved = 0;

  friend bool operator==(const RingAddress&, const RingAddress&) = default;
};
static_assert(sizeof(RingAddress) == 32);

struct RingCall {
  enum class Kind : uint32_t { kWake, kRing };

  // Set in a refusal's number if the called process had no file descriptor left. It may have one later.
  static constexpr uint64_t kForWant = 1;

  uint64_t key = 0;  // of the called process
  RingAddress caller;
  uint64_t number = 0;  // random and even; a refusal names it
  Kind kind = Kind::kWake;
  int32_t descriptor = -1;  // of the caller's ring, which the called process is to read from now on
};
static_assert(sizeof(RingCall) == 56);

struct DoorbellPage {
  static constexpr uint32_t kNumRefusals = 64;

  uint64_t key;
  // Incremented by a caller after it has written a call that needs an answer into the pipe.
  std::atomic<uint32_t> num_calls;
  std::atomic<uint32_t> num_refusals;  // written by the owner: refused rings, the latest at num_refusals % kNumRefusals
  std::atomic<uint32_t> is_closed;     // written by the owner, which reads no more calls
  std::array<std::atomic<uint64_t>, kNumRefusals> refusals;  // the numbers of the refused calls
};

class RingDoorbell {
 public:
  static Result<RingDoorbell> make(uint64_t key);

  int page() const noexcept { return page_.descriptor(); }
  int pipe() const noexcept { return pipe_.get(); }
  // Returns whether a process may have called for an answer since the last next() that returned false.
  bool has_calls() const noexcept { return shared().num_calls.load(std::memory_order_acquire) != num_calls_seen_; }
  // Reads the next call. Returns whether there was one. Foreign bytes are skipped, and set `finds_foreign`.
  bool next(RingCall& call, bool& finds_foreign) noexcept;
  void refuse(uint64_t number) noexcept;
  // Makes the pipe readable, as a call does.
  void wake() noexcept;
  void close() noexcept { shared().is_closed.store(1, std::memory_order_release); }

 private:
  RingDoorbell(uint64_t key, SharedPages page, FileDescriptor pipe) noexcept
      : key_(key), page_(std::move(page)), pipe_(std::move(pipe)) {}
  DoorbellPage& shared() const noexcept { return *reinterpret_cast<DoorbellPage*>(page_.data()); }
  bool read_more() noexcept;

  uint64_t key_;
  SharedPages page_;
  FileDescriptor pipe_;
  uint32_t num_calls_seen_ = 0;
  std::array<std::byte, 16 * sizeof(RingCall)> bytes_{};
  size_t begin_ = 0;
  size_t end_ = 0;
};

class WakeUpPipe {
 public:
  // Fails if this process may not access the other one, or if another process has taken its pid.
  static Result<WakeUpPipe> open(const RingAddress& address);

  // Returns whether the call was written. If false, the pipe is full; a sleeping owner is woken then, too.
  bool call(const RingCall& call) noexcept;
  // Returns how the owner has refused this call since the last query, if at all.
  enum class Refused : uint8_t { kNo, kYes, kForWant, kMaybe };
  Refused has_refused(uint64_t number) noexcept;
  bool is_closed() const noexcept { return shared().is_closed.load(std::memory_order_acquire) != 0; }

 private:
  WakeUpPipe(SharedPages page, FileDescriptor pipe) noexcept : page_(std::move(page)), pipe_(std::move(pipe)) {}
  DoorbellPage& shared() const noexcept { return *reinterpret_cast<DoorbellPage*>(page_.data()); }

  SharedPages page_;
  FileDescriptor pipe_;
  uint32_t num_refusals_seen_ = 0;
};

}  // namespace axon::transport
