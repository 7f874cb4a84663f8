#include "transport/rings/ring.hpp"

#include <algorithm>
#include <cstddef>

namespace axon::transport {

Result<RingWriter> RingWriter::make(uint64_t writer, uint64_t reader) {
  Result<SharedPages> pages = SharedPages::make(sizeof(RingMemory));
  if (!pages.ok()) return std::move(pages.status());
  RingWriter made(std::move(pages).value());
  made.ring().writer = writer;
  made.ring().reader = reader;
  return made;
}

bool RingWriter::is_read() noexcept {
  if (is_read_) [[likely]]
    return true;
  is_read_ = ring().is_read.load(std::memory_order_acquire) != 0;
  if (is_read_) pages_.close();
  return is_read_;
}

bool RingWriter::has_room(uint32_t num_entries) noexcept {
  const auto fits = [&] { return num_entries <= RingMemory::kNumEntries - (num_written_ - num_taken_); };
  if (fits()) [[likely]]
    return true;
  num_taken_ = ring().num_taken.load(std::memory_order_acquire);
  return fits();
}

// The first entry is written last and in one go: the reader polls its cache line, and takes the line away between two
// writes. The head is exchanged rather than stored, because `sleeps` must be read after it. The reader orders its
// accesses the other way: it sets `sleeps`, then looks for messages.
template <typename Header>
RingWriter::Outcome RingWriter::put(RingHead::Kind kind, const Header& header, ConstBuffer payload) noexcept {
  static constexpr size_t kMostInFirst = RingEntry::kNumBytes - sizeof header;
  const uint32_t num_entries = RingMemory::entries_of(payload.num_bytes, sizeof header);
  const uint32_t num_left = RingMemory::kNumEntries - num_written_ % RingMemory::kNumEntries;
  const uint32_t num_skipped = num_entries > num_left ? num_left : 0;
  if (!has_room(num_skipped + num_entries)) return Outcome::kFull;
  RingMemory& memory = ring();
  if (num_skipped != 0) {
    memory.entries[num_written_ % RingMemory::kNumEntries].head.store(
        {.kind = RingHead::Kind::kWrap, .entry = num_written_}, std::memory_order_release);
    num_written_ += num_skipped;
  }
  RingEntry& first = memory.entries[num_written_ % RingMemory::kNumEntries];
  std::byte* const target = first.begin() + sizeof header;
  const size_t num_in_first = std::min(payload.num_bytes, kMostInFirst);
  if (payload.num_bytes > kMostInFirst) {
    sync::copy(target + kMostInFirst, payload.data + kMostInFirst, payload.num_bytes - kMostInFirst);
  }
  sync::copy(first.begin(), &header, sizeof header);
  if (num_in_first != 0) sync::copy(target, payload.data, num_in_first);
  first.head.exchange({.kind = kind, .num_bytes = static_cast<uint32_t>(payload.num_bytes), .entry = num_written_});
  num_written_ += num_entries;
  const bool sleeps = memory.sleeps.load() != 0 && memory.sleeps.exchange(0) != 0;
  return sleeps ? Outcome::kWrittenToSleeper : Outcome::kWritten;
}

// Returns whether a ShortCallHeader says all that the header does.
static bool is_short(const CallHeader& call) noexcept {
  return call.tensor == 0 && call.sent_at_ms == 0 && call.remaining_ms == 0 && call.num_answers == 0;
}

RingWriter::Outcome RingWriter::write(RingHead::Kind kind, const MessageHeader& header, ConstBuffer payload) noexcept {
  const bool is_of_call = kind == RingHead::Kind::kMessage && family_of(header.kind) == MessageFamily::kCall;
  if (is_of_call && keys_.has(header.key)) {
    const auto call = header.as<CallHeader>();
    if (is_short(call)) return put(RingHead::Kind::kCall, KeyTable::shorten(call), payload);
  }
  const uint32_t entry = num_written_;
  const Outcome outcome = put(kind, header, payload);
  if (is_of_call && outcome != Outcome::kFull && !keys_.has(header.key)) {
    keys_.put(header.key);
    named_at_[KeyTable::index_of(header.key)] = entry;
  }
  return outcome;
}

RingWriter::Outcome RingWriter::write(RingHead::Kind kind, const TransferHeader& header, ConstBuffer payload) noexcept {
  return put(kind, header, payload);
}

static bool is_withdrawable(MessageKind kind) noexcept {
  return kind == MessageKind::kInvoke || kind == MessageKind::kTell;
}

std::byte* RingWriter::kind_in(uint32_t entry, const CallHeader& call) const noexcept {
  RingEntry& first = ring().entries[entry % RingMemory::kNumEntries];
  const RingHead::Kind kind = first.head.load(std::memory_order_relaxed).kind;
  if (kind == RingHead::Kind::kCall) {
    const auto header = first.header<ShortCallHeader>();
    const uint8_t index = KeyTable::index_of(call.key);
    const bool is_of_key =
        header.key == index && keys_.has(call.key) && num_written_ - named_at_[index] > num_written_ - entry;
    const bool is_this = is_of_key && header.number == call.number && is_withdrawable(header.kind);
    return is_this ? first.begin() + offsetof(ShortCallHeader, kind) : nullptr;
  }
  if (kind != RingHead::Kind::kMessage && kind != RingHead::Kind::kRts) return nullptr;
  const auto header = first.header<MessageHeader>();
  const bool is_this =
      header.key == call.key && is_withdrawable(header.kind) && header.as<CallHeader>().number == call.number;
  return is_this ? first.begin() + offsetof(MessageHeader, kind) : nullptr;
}

// Starts at the last entry that the reader has returned, since the entry following it begins with a head. A reader that
// lies about its count harms only itself, but cannot lead this loop out of the ring. The head is stored once more, so
// that a reader that loads it from now on sees the changed kind.
void RingWriter::withdraw(const CallHeader& call) noexcept {
  uint32_t entry = ring().num_taken.load(std::memory_order_acquire);
  for (uint32_t num_left = num_written_ - entry; num_left != 0 && num_left <= RingMemory::kNumEntries;) {
    sync::atomic<RingHead>& head = ring().entries[entry % RingMemory::kNumEntries].head;
    const RingHead found = head.load(std::memory_order_relaxed);
    if (found.entry != entry) return;
    if (std::byte* const kind = kind_in(entry, call)) {
      static constexpr MessageKind kWithdrawn = MessageKind::kWithdrawn;
      sync::copy(kind, &kWithdrawn, sizeof kWithdrawn);
      return head.store(found, std::memory_order_release);
    }
    const uint32_t num_entries = found.kind == RingHead::Kind::kWrap
                                     ? RingMemory::kNumEntries - entry % RingMemory::kNumEntries
                                     : RingMemory::entries_of(found.num_bytes, header_num_bytes_of(found.kind));
    if (num_entries > num_left) return;
    entry += num_entries;
    num_left -= num_entries;
  }
}

// Clears entries that hold payload bytes. Entries with their own head keep it: it is invalid in the next lap.
void RingReader::give_back() noexcept {
  for (; num_told_ != num_taken_; ++num_told_) {
    sync::atomic<RingHead>& head = ring().entries[num_told_ % RingMemory::kNumEntries].head;
    if (head.load(std::memory_order_relaxed).entry != num_told_) head.store({}, std::memory_order_relaxed);
  }
  ring().num_taken.store(num_taken_, std::memory_order_release);
}

Result<RingReader> RingReader::open(int32_t pid, int descriptor, uint64_t writer, uint64_t reader) {
  Result<SharedPages> pages = SharedPages::open(pid, descriptor, sizeof(RingMemory));
  if (!pages.ok()) return std::move(pages.status());
  RingReader opened(std::move(pages).value());
  RingMemory& ring = opened.ring();
  if (ring.writer != writer || ring.reader != reader) {
    return Status(ErrorCode::kInvalidArgument, "the memory is a ring between other processes, or no ring");
  }
  ring.is_read.store(1, std::memory_order_release);
  return opened;
}

}  // namespace axon::transport
