// A queue of messages from one process to another, in memory that both map. One process writes, the other reads, and
// neither waits.
//
//   if (writer.write(kind, header, payload) == RingWriter::Outcome::kFull) …   // try again later
//   reader.read(most, [](RingHead::Kind kind, const auto& header, const Payload& payload) { … });
//
// The memory consists of entries of 64 bytes. A message takes as many contiguous entries as it needs for a head, the
// header and the payload. One entry thus carries up to 16 bytes of payload, or 48 bytes of a call's. The head is
// written last. A writer that dies at any instruction leaves no partly written message for the reader, and cannot block
// it. A reader rejects every head that would lead out of the ring.
//
// Heads name their entry, counted from the start, so that a head of the previous lap is invalid. A payload is never
// mistaken for a head. If payload bytes have covered an entry's first bytes, the reader clears them before the writer
// reuses the entry.
//
// The writer's process owns the memory; the reader maps it. Each end belongs to one thread at a time.
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

// An entry's number, the kind of message that begins there, and the size of its payload. It is aligned for one atomic
// load: clang calls libatomic for any other alignment.
struct alignas(sizeof(uint64_t)) RingHead {
  enum class Kind : uint8_t {
    kNothing,
    kWrap,     // the next message begins at the ring's first entry
    kMessage,  // for this and the following kinds, see ring_link.hpp
    kRts,      // like kMessage, has a MessageHeader
    kAck,      // this and the following kinds have a TransferHeader
    kNack,
    kCts,
    kData,
    kCall,  // a message with a ShortCallHeader; read as kMessage
  };

  Kind kind : 8 = Kind::kNothing;
  uint32_t num_bytes : 24 = 0;
  uint32_t entry = 0;
};

// The header of an answer to an RTS, and of the DATA that a CTS asks for.
struct TransferHeader {
  uint64_t number = 0;  // the RTS's
};
static_assert(sizeof(TransferHeader) == 8);

// The part of a CallHeader that differs from one call to the next. Each whole header of a call stores its key in a
// table at both ends; a ShortCallHeader refers to the key by its index there.
struct ShortCallHeader {
  uint32_t number = 0;
  MessageKind kind{};
  uint8_t key = 0;  // its index in the table
  uint16_t reserved = 0;
};
static_assert(sizeof(ShortCallHeader) == 8 && std::has_unique_object_representations_v<ShortCallHeader>);

// Returns the size of the header that follows the head of a message.
constexpr size_t header_num_bytes_of(RingHead::Kind kind) noexcept {
  if (kind == RingHead::Kind::kMessage || kind == RingHead::Kind::kRts) [[likely]]
    return sizeof(MessageHeader);
  return kind == RingHead::Kind::kCall ? sizeof(ShortCallHeader) : sizeof(TransferHeader);
}

class KeyTable {
 public:
  bool has(uint64_t key) const noexcept { return keys_[index_of(key)] == key; }
  void put(uint64_t key) noexcept { keys_[index_of(key)] = key; }
  static ShortCallHeader shorten(const CallHeader& header) noexcept {
    return {.number = header.number, .kind = header.kind, .key = index_of(header.key)};
  }
  // An unknown index gives key 0, which no receiver has.
  CallHeader restore(const ShortCallHeader& header) const noexcept {
    return {.key = keys_[header.key % kNumKeys], .kind = header.kind, .number = header.number};
  }
  static constexpr size_t kNumKeys = 64;
  static uint8_t index_of(uint64_t key) noexcept { return key % kNumKeys; }

 private:
  std::array<uint64_t, kNumKeys> keys_{};
};

struct alignas(kEntryBytes) RingEntry {
  sync::atomic<RingHead> head;

  // The start of the header, following the head. The payload follows the header, and continues in the next entries.
  std::byte* begin() noexcept { return reinterpret_cast<std::byte*>(this) + sizeof head; }
  template <typename Header>
  Header header() noexcept {
    Header header;
    sync::copy(&header, begin(), sizeof header);
    return header;
  }
  static constexpr size_t kNumBytes = kEntryBytes - sizeof head;
};
static_assert(sizeof(RingEntry) == kEntryBytes && sync::atomic<RingHead>::is_always_lock_free);

struct RingMemory {
  static constexpr uint32_t kNumEntries = ring_size::kNumEntries;
  static constexpr size_t kMostBytes = ring_size::kMostBytes;

  // Written by the reader. The count is of entries from the start, and wraps around.
  alignas(2 * kEntryBytes) sync::atomic<uint32_t> num_taken;
  sync::atomic<uint32_t> is_read;  // set by the reader when it maps the ring; the writer writes nothing before
  sync::atomic<uint32_t> sleeps;   // set by a reader that sleeps and must be woken; cleared by the writer
  uint64_t writer;                 // the keys of both processes, stored by the writer before it shares the ring
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

  // The descriptor by which the reader opens the ring; it is valid until then.
  int descriptor() const noexcept { return pages_.descriptor(); }
  // Returns whether the reader has mapped the ring; nothing may be written before.
  bool is_read() noexcept;
  // Never waits. kWrittenToSleeper is returned once per sleep: the caller must wake the reader.
  Outcome write(RingHead::Kind kind, const MessageHeader& header, ConstBuffer payload) noexcept;
  Outcome write(RingHead::Kind kind, const TransferHeader& header, ConstBuffer payload) noexcept;
  // Makes the reader find kWithdrawn instead of this call, unless it has read the call already.
  void withdraw(const CallHeader& call) noexcept;

 private:
  explicit RingWriter(SharedPages pages) noexcept : pages_(std::move(pages)) {}
  RingMemory& ring() const noexcept { return *reinterpret_cast<RingMemory*>(pages_.data()); }
  template <typename Header>
  Outcome put(RingHead::Kind kind, const Header& header, ConstBuffer payload) noexcept;
  bool has_room(uint32_t num_entries) noexcept;
  // Returns the address of the message's kind in the entry's header if the entry begins this call; otherwise null.
  std::byte* kind_in(uint32_t entry, const CallHeader& call) const noexcept;

  SharedPages pages_;
  uint32_t num_written_ = 0;
  uint32_t num_taken_ = 0;  // as last read from the ring
  bool is_read_ = false;
  KeyTable keys_;                                        // the keys that the reader knows
  std::array<uint32_t, KeyTable::kNumKeys> named_at_{};  // the entry that stored each key
};

class RingReader {
 public:
  // Opens a ring by the pid and descriptor that the writer's process has sent. The writer may write from then on.
  // kInvalidArgument: the memory is not a ring, or not one between these two processes.
  static Result<RingReader> open(int32_t pid, int descriptor, uint64_t writer, uint64_t reader);

  // Reads up to `most` messages and returns how many. Each lies in the ring until `deliver` returns, and its writer may
  // change it until then. `deliver` takes a MessageHeader or, from kAck to kData, a TransferHeader.
  template <typename Deliver>
  unsigned read(unsigned most, Deliver deliver) noexcept;
  bool has_message() const noexcept { return !is_broken_ && is_next(entry().head.load()); }
  // Returns whether the ring holds bytes that no writer of ours writes. Nothing more is read from it.
  bool is_broken() const noexcept { return is_broken_; }
  // Asks the writer to wake this process for the next message. Look for messages afterwards.
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
  template <typename Deliver>
  void deliver_from(RingEntry& first, RingHead head, Deliver& deliver) noexcept;

  SharedPages pages_;
  uint32_t num_taken_ = 0;
  uint32_t num_told_ = 0;  // the count that the writer knows
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
      // The writer fills the next message's second entry before its head, and the reader needs it next.
      __builtin_prefetch(&first + 1);
      break;
    }
    ++num_read;
    const uint32_t num_left = RingMemory::kNumEntries - num_taken_ % RingMemory::kNumEntries;
    if (head.kind == RingHead::Kind::kWrap) {
      take(num_left);
      continue;
    }
    const uint32_t num_entries = RingMemory::entries_of(head.num_bytes, header_num_bytes_of(head.kind));
    is_broken_ = head.kind > RingHead::Kind::kCall || head.num_bytes > RingMemory::kMostBytes || num_entries > num_left;
    if (is_broken_) break;
    deliver_from(first, head, deliver);
    take(num_entries);
  }
  return num_read;
}

template <typename Deliver>
void RingReader::deliver_from(RingEntry& first, RingHead head, Deliver& deliver) noexcept {
  const Payload payload{.bytes = first.begin() + header_num_bytes_of(head.kind), .num_bytes = head.num_bytes};
  switch (head.kind) {
    case RingHead::Kind::kMessage:
    case RingHead::Kind::kRts: {
      const auto header = first.header<MessageHeader>();
      const bool is_of_call = family_of(header.kind) == MessageFamily::kCall;
      if (is_of_call && head.kind == RingHead::Kind::kMessage) keys_.put(header.key);
      return deliver(head.kind, header, payload);
    }
    case RingHead::Kind::kCall: {
      const MessageHeader header = keys_.restore(first.header<ShortCallHeader>());
      return deliver(RingHead::Kind::kMessage, header, payload);
    }
    default:
      return deliver(head.kind, first.header<TransferHeader>(), payload);
  }
}

}  // namespace axon::transport
