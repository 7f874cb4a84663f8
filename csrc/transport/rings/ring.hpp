// A queue of messages from one process to another, in memory that both map: one writes, one reads, neither waits.
//
//   if (writer.write(kind, header, payload) == RingWriter::Outcome::kFull) …   // later
//   reader.read(most, [](RingHead::Kind kind, const MessageHeader& header, const Payload& payload) { … });
//
// The memory is entries of 64 bytes. A message takes as many as it needs, side by side: a head, the header, the
// payload, so that up to 16 bytes travel in one entry, 48 of a call's. The head is written last: a writer that dies at
// any instruction leaves nothing half written to be read, nor can it hold anybody up. A reader believes no head that
// leads out of the ring.
//
// Heads name their entry, counted from the start: what is left of the lap before is none. Nor are payloads taken for
// one: where one has lain on an entry's first bytes, the reader clears them before the writer gets the entry again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/sync.hpp"
#include "memory/shared_pages.hpp"
#include "transport/rings/ring_size.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

inline constexpr size_t kEntryBytes = 64;

// An entry's number, what begins there, and how many bytes of payload it has. Aligned as what is loaded at one go is:
// clang calls libatomic for anything else.
struct alignas(sizeof(uint64_t)) RingHead {
  enum class Kind : uint8_t {
    kNothing,
    kWrap,     // the next one begins on the ring's first entry
    kMessage,  // this and those below: see ring_link.hpp
    kRts,
    kAck,
    kNack,
    kCts,
    kFragment,
    kCall,  // a message with a CallHeader; read as kMessage
  };

  Kind kind : 8 = Kind::kNothing;
  uint32_t num_bytes : 24 = 0;
  uint32_t entry = 0;
};

// What of a call's message header differs from one to the next. Whole headers of calls put their keys into a table of
// both ends, where these find them.
struct CallHeader {
  uint32_t sequence = 0;
  OperationKind operation{};
  uint8_t key = 0;  // its index in the table
  uint16_t reserved = 0;
};
static_assert(sizeof(CallHeader) == 8);

class KeyTable {
 public:
  bool has(uint64_t key) const noexcept { return keys_[index_of(key)] == key; }
  void put(uint64_t key) noexcept { keys_[index_of(key)] = key; }
  CallHeader shorten(const MessageHeader& header) const noexcept {
    return {.sequence = header.sequence, .operation = header.fingerprint.operation, .key = index_of(header.key)};
  }
  // With a key of nobody's where there is none.
  MessageHeader restore(const CallHeader& header) const noexcept {
    MessageHeader whole;
    whole.key = keys_[header.key % kNumKeys];
    whole.sequence = header.sequence;
    whole.fingerprint.operation = header.operation;
    return whole;
  }
  static constexpr size_t kNumKeys = 64;
  static uint8_t index_of(uint64_t key) noexcept { return key % kNumKeys; }

 private:
  std::array<uint64_t, kNumKeys> keys_{};
};

struct alignas(kEntryBytes) RingEntry {
  sync::atomic<RingHead> head;

  // Of the header, behind the head; the payload follows, through the entries behind this one.
  std::byte* begin() noexcept { return reinterpret_cast<std::byte*>(this) + sizeof head; }
  static constexpr size_t kNumBytes = kEntryBytes - sizeof head;
};
static_assert(sizeof(RingEntry) == kEntryBytes && sync::atomic<RingHead>::is_always_lock_free);

struct RingMemory {
  static constexpr uint32_t kNumEntries = ring_size::kNumEntries;
  static constexpr size_t kMostBytes = ring_size::kMostBytes;

  // Written by the reader. The count is of entries from the start, and wraps.
  alignas(2 * kEntryBytes) sync::atomic<uint32_t> num_taken;
  sync::atomic<uint32_t> is_read;  // from now on; before, nothing is written
  sync::atomic<uint32_t> sleeps;   // the reader does, and wants to be woken; cleared by the writer
  uint64_t writer;                 // the keys of these two, by the writer, who then shows the ring
  uint64_t reader;
  alignas(2 * kEntryBytes) RingEntry entries[kNumEntries];

  static uint32_t entries_of(size_t num_payload_bytes, size_t num_header_bytes = sizeof(MessageHeader)) noexcept {
    const size_t num_bytes = sizeof(RingEntry::head) + num_header_bytes + num_payload_bytes;
    return static_cast<uint32_t>((num_bytes + kEntryBytes - 1) / kEntryBytes);
  }
};

class RingWriter {
 public:
  enum class Outcome : uint8_t { kFull, kWritten, kWrittenToSleeper };

  static Result<RingWriter> make(uint64_t writer, uint64_t reader);

  // What the reader opens it by, until it has.
  int descriptor() const noexcept { return pages_.descriptor(); }
  // Whether somebody reads; nothing may be written before.
  bool is_read() noexcept;
  // Never waits. A sleeper is one that must be woken, and of which nobody else has been told.
  Outcome write(RingHead::Kind kind, const MessageHeader& header, ConstBuffer payload) noexcept;
  // The reader finds kWithdrawn in the place of this call, unless it has read that already.
  void withdraw(const MessageHeader& call) noexcept;

 private:
  explicit RingWriter(SharedPages pages) noexcept : pages_(std::move(pages)) {}
  RingMemory& ring() const noexcept { return *reinterpret_cast<RingMemory*>(pages_.data()); }
  template <typename Header>
  Outcome put(RingHead::Kind kind, const Header& header, ConstBuffer payload) noexcept;
  bool has_room(uint32_t num_entries) noexcept;
  // The place of the operation in the header of the entry, if that begins this call; else null.
  std::byte* operation_in(uint32_t entry, const MessageHeader& call) const noexcept;

  SharedPages pages_;
  uint32_t num_written_ = 0;
  uint32_t num_taken_ = 0;  // as last seen
  bool is_read_ = false;
  KeyTable keys_;                                        // that its reader knows
  std::array<uint32_t, KeyTable::kNumKeys> named_at_{};  // from which entry on a place has the key that it has now
};

class RingReader {
 public:
  // By what its writer's process has told; the writer may write from now on. kInvalidArgument: it is no ring, or not
  // one between these two.
  static Result<RingReader> open(int32_t pid, int descriptor, uint64_t writer, uint64_t reader);

  // Up to so many messages; returns how many. They are the ring's until `deliver` returns, and may change until then.
  template <typename Deliver>
  unsigned read(unsigned most, Deliver deliver) noexcept;
  bool has_message() const noexcept { return !is_broken_ && is_next(entry().head.load()); }
  // Something that no writer of ours writes has been found: nothing is read any more.
  bool is_broken() const noexcept { return is_broken_; }
  // The writer tells of the next message. Look for messages afterwards.
  void fall_asleep() noexcept { ring().sleeps.store(1); }

 private:
  explicit RingReader(SharedPages pages) noexcept : pages_(std::move(pages)) {}
  RingMemory& ring() const noexcept { return *reinterpret_cast<RingMemory*>(pages_.data()); }
  RingEntry& entry() const noexcept { return ring().entries[num_taken_ % RingMemory::kNumEntries]; }
  bool is_next(RingHead head) const noexcept {
    return head.entry == num_taken_ && head.kind != RingHead::Kind::kNothing;
  }
  void take(uint32_t num_entries) noexcept {
    num_taken_ += num_entries;
    if (num_taken_ - num_told_ >= ring_size::kNumEntriesPerReturn) give_back();
  }
  void give_back() noexcept;

  SharedPages pages_;
  uint32_t num_taken_ = 0;
  uint32_t num_told_ = 0;  // of these, the writer knows
  bool is_broken_ = false;
  KeyTable keys_;
};

template <typename Deliver>
unsigned RingReader::read(unsigned most, Deliver deliver) noexcept {
  unsigned num_read = 0;
  while (num_read < most && !is_broken_) {
    RingEntry& first = entry();
    const RingHead head = first.head.load(std::memory_order_acquire);
    if (!is_next(head)) {
      __builtin_prefetch(&first + 1);  // what the next message goes on with is written before its head, and then here
      break;
    }
    ++num_read;
    const uint32_t num_left = RingMemory::kNumEntries - num_taken_ % RingMemory::kNumEntries;
    if (head.kind == RingHead::Kind::kWrap) {
      take(num_left);
      continue;
    }
    const size_t num_header_bytes = head.kind == RingHead::Kind::kCall ? sizeof(CallHeader) : sizeof(MessageHeader);
    const uint32_t num_entries = RingMemory::entries_of(head.num_bytes, num_header_bytes);
    is_broken_ = head.kind > RingHead::Kind::kCall || head.num_bytes > RingMemory::kMostBytes || num_entries > num_left;
    if (is_broken_) break;
    const Payload payload{.bytes = first.begin() + num_header_bytes, .num_bytes = head.num_bytes};
    if (head.kind == RingHead::Kind::kCall) {
      CallHeader header;
      sync::copy(&header, first.begin(), sizeof header);
      deliver(RingHead::Kind::kMessage, keys_.restore(header), payload);
    } else {
      MessageHeader header;
      sync::copy(&header, first.begin(), sizeof header);
      if (head.kind == RingHead::Kind::kMessage && is_of_a_call(header.fingerprint.operation)) keys_.put(header.key);
      deliver(head.kind, header, payload);
    }
    take(num_entries);
  }
  return num_read;
}

}  // namespace axon::transport
