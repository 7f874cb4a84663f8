// How a process calls another one of its host: a pipe that its owner reads, and a page that says whether to look there.
//
//   Result<RingDoorbell> mine = RingDoorbell::make(key);           // who knows the key may call
//   Result<WakeUpPipe> theirs = WakeUpPipe::open(address);         // of theirs, by way of their process's descriptors
//   theirs.value().call({.key = address.key, …});              // never waits
//
// A call is written whole or not at all, whoever is killed meanwhile. Others who may look into the process can write
// what they like: what does not begin with the key is no call.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/file_descriptor.hpp"
#include "memory/shared_pages.hpp"

namespace axon::transport {

// Of a process that takes rings; behind the network's address. Key 0: it takes none.
struct RingAddress {
  uint64_t key = 0;       // random: who knows it has been given the address
  uint64_t identity = 0;  // where the key lies in the process's memory, for who reads there
  int32_t pid = 0;
  int32_t page = -1;  // descriptors of that process
  int32_t pipe = -1;
  int32_t reserved = 0;

  friend bool operator==(const RingAddress&, const RingAddress&) = default;
};
static_assert(sizeof(RingAddress) == 32);

struct RingCall {
  enum class Kind : uint32_t { kWake, kRing };

  // Set in a refusal's number where the process that was called had no file descriptor left: it may have some later.
  static constexpr uint64_t kForWant = 1;

  uint64_t key = 0;  // of who is called
  RingAddress caller;
  uint64_t number = 0;  // random and even: what a refusal names
  Kind kind = Kind::kWake;
  int32_t descriptor = -1;  // of the caller's ring, which is to be read from now on
};
static_assert(sizeof(RingCall) == 56);

struct DoorbellPage {
  static constexpr uint32_t kNumRefusals = 64;

  uint64_t key;
  std::atomic<uint32_t> num_calls;     // by callers, once one that is to be answered is in the pipe
  std::atomic<uint32_t> num_refusals;  // by the owner: of rings, the latest at num_refusals % kNumRefusals
  std::atomic<uint32_t> is_closed;     // by the owner, who hears nothing any more
  std::array<std::atomic<uint64_t>, kNumRefusals> refusals;  // the numbers of their calls
};

class RingDoorbell {
 public:
  static Result<RingDoorbell> make(uint64_t key);

  int page() const noexcept { return page_.descriptor(); }
  int pipe() const noexcept { return pipe_.get(); }
  // Somebody may have called for an answer since the last next() that found nothing.
  bool has_calls() const noexcept { return shared().num_calls.load(std::memory_order_acquire) != num_calls_seen_; }
  // The next call; false: there is none. What is none is left out, and `finds_foreign` set.
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
  // Fails where this process may not look into that one, or it is another one by now.
  static Result<WakeUpPipe> open(const RingAddress& address);

  // False: so much lies there unread that there is no room. Who sleeps is woken then, too.
  bool call(const RingCall& call) noexcept;
  // Whether this call has been, since the last time that this was asked.
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
