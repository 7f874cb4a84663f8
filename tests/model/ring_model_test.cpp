// Checks a ring of four entries between its writer and its reader in every interleaving. Every message is read once, in
// order and complete, and no reader sleeps while there is something to read.
//
// Built again with faults seeded into the ring's own code (AXON_SEEDED); the same programs must find each fault.
#include <array>
#include <cstring>
#include <vector>

#include "programs.hpp"
#include "scheduler.hpp"
#include "transport/rings/ring.hpp"

namespace axon::transport {
namespace {

using Outcome = RingWriter::Outcome;

// Messages of one entry or two. Their order first fills the ring's last entry, then skips it, and puts heads where the
// previous lap had payloads. Messages of calls have short headers, except for the first.
struct Sent {
  size_t num_bytes;
  MessageKind kind = MessageKind::kCredit;
};
constexpr Sent kSent[] = {{16, MessageKind::kInvoke}, {24},
                          {24, MessageKind::kInvoke}, {16},
                          {56, MessageKind::kInvoke}, {RingMemory::kMostBytes}};
constexpr uint64_t kKey = 5;

Sent sent_as(uint32_t sequence) {
  return kSent[sequence % std::size(kSent)];
}

size_t header_bytes_of(uint32_t sequence) {
  const bool is_short = sequence != 0 && family_of(sent_as(sequence).kind) == MessageFamily::kCall;
  return is_short ? sizeof(ShortCallHeader) : sizeof(MessageHeader);
}

MessageHeader header_of(uint32_t sequence) {
  const MessageKind kind = sent_as(sequence).kind;
  if (family_of(kind) == MessageFamily::kCall) return CallHeader{.key = kKey, .kind = kind, .number = sequence};
  return CreditHeader{.key = kKey, .kind = kind, .num_messages = sequence};
}

uint32_t sequence_of(const MessageHeader& header) {
  const bool is_call = family_of(header.kind) == MessageFamily::kCall;
  return is_call ? header.as<CallHeader>().number : header.as<CreditHeader>().num_messages;
}

using Bytes = std::array<std::byte, RingMemory::kMostBytes>;

// The payload contains, where a second entry would have its head, a forged head that is valid for that entry a lap
// later.
Bytes payload_of(uint32_t sequence, uint32_t entry) {
  Bytes bytes;
  bytes.fill(static_cast<std::byte>(sequence + 1));
  const RingHead forged{.kind = RingHead::Kind::kMessage, .entry = entry + 1 + RingMemory::kNumEntries};
  std::memcpy(bytes.data() + RingEntry::kNumBytes - header_bytes_of(sequence), &forged, sizeof forged);
  return bytes;
}

// The two ends of the ring, and where its next message must be, which the programs compute without reading the ring.
class World {
 public:
  Outcome write(uint32_t sequence) {
    const Sent sent = sent_as(sequence);
    const uint32_t num_entries = RingMemory::entries_of(sent.num_bytes, header_bytes_of(sequence));
    const uint32_t num_left = num_left_at(write_entry_);
    const uint32_t entry = num_entries > num_left ? write_entry_ + num_left : write_entry_;
    const Bytes payload = payload_of(sequence, entry);
    const Outcome outcome = writer.write(RingHead::Kind::kMessage, header_of(sequence),
                                         {.data = payload.data(), .num_bytes = sent.num_bytes});
    if (outcome != Outcome::kFull) write_entry_ = entry + num_entries;
    return outcome;
  }
  // Waits for room if the ring is full.
  Outcome write_in_the_end(uint32_t sequence) {
    for (;;) {
      const uint32_t num_taken = memory().num_taken.peek();
      const Outcome outcome = write(sequence);
      if (outcome != Outcome::kFull) return outcome;
      model::block_until([&] { return memory().num_taken.peek() != num_taken; }, model::kNever);
    }
  }
  void write_all(uint32_t num_messages) {
    for (uint32_t sequence = 0; sequence < num_messages; ++sequence) write_in_the_end(sequence);
  }
  void block_until_read() {
    model::block_until([&] { return memory().is_read.peek() != 0; }, model::kNever);
  }

  // Returns whether it read something, which may be the skipped end of the ring rather than a message.
  bool read(RingReader& reader) {
    const size_t num_before = received_.size();
    const unsigned num_read =
        reader.read(1, [this](RingHead::Kind, const auto& header, const Payload& payload) { take(header, payload); });
    model::check(!reader.is_broken(), "the reader finds valid entries");
    if (num_read != 0 && received_.size() == num_before) read_entry_ += num_left_at(read_entry_);
    return num_read != 0;
  }
  void read_all(RingReader& reader, uint32_t num_messages) {
    while (received_.size() < num_messages) {
      if (!read(reader)) model::block_until([&] { return has_message(); }, model::kNever);
    }
    model::check(received_.back() == num_messages - 1 && !reader.has_message(), "all messages arrive, and no others");
  }
  bool has_message() const {
    const RingHead head = memory().entries[read_entry_ % RingMemory::kNumEntries].head.peek();
    return head.kind != RingHead::Kind::kNothing && head.entry == read_entry_;
  }
  const std::vector<uint32_t>& received() const { return received_; }

  RingWriter writer = RingWriter::make(1, 2).value();
  static RingReader open() { return RingReader::open(0, -1, 1, 2).value(); }

 private:
  static uint32_t num_left_at(uint32_t entry) { return RingMemory::kNumEntries - entry % RingMemory::kNumEntries; }
  RingMemory& memory() const { return *reinterpret_cast<RingMemory*>(pages_.data()); }

  static void take(const TransferHeader&, const Payload&) { model::check(false, "only messages arrive"); }
  void take(const MessageHeader& header, const Payload& payload) {
    const uint32_t sequence = sequence_of(header);
    model::check(received_.empty() || sequence > received_.back(), "each message arrives once, in order");
    received_.push_back(sequence);
    const auto [num_bytes, kind] = sent_as(sequence);
    model::check(payload.num_bytes == num_bytes, "the length is what was written");
    model::check(header.key == kKey && header.kind == kind, "the header is what was written");
    const Bytes sent = payload_of(sequence, read_entry_);
    read_entry_ += RingMemory::entries_of(num_bytes, header_bytes_of(sequence));
    for (int look = 0; look < 2; ++look) {
      model::check(std::memcmp(sent.data(), payload.bytes, num_bytes) == 0, "the payload is complete, and stays");
      model::point();
    }
  }

  SharedPages pages_ = SharedPages::open(0, -1, sizeof(RingMemory)).value();
  uint32_t write_entry_ = 0;
  uint32_t read_entry_ = 0;
  std::vector<uint32_t> received_;
};

template <uint32_t kNumMessages>
void all_come_in_order() {
  World world;
  RingReader reader = World::open();
  sync::thread writer([&] { world.write_all(kNumMessages); });
  world.read_all(reader, kNumMessages);
  writer.join();
}

void opened_beside_its_writer() {
  World world;
  sync::thread writer([&] {
    while (!world.writer.is_read()) world.block_until_read();
    world.write_all(2);
  });
  RingReader reader = World::open();
  world.read_all(reader, 2);
  writer.join();
}

// A message that finds no room is not written; the messages in the ring still arrive, and no others.
void full_ring_turns_away() {
  static constexpr uint32_t kNumMessages = 6;
  World world;
  RingReader reader = World::open();
  std::vector<uint32_t> written;
  sync::atomic<bool> is_over{false};
  sync::thread writer([&] {
    for (uint32_t sequence = 0; sequence < kNumMessages; ++sequence) {
      if (world.write(sequence) != Outcome::kFull) written.push_back(sequence);
    }
    is_over.store(true);
  });
  for (bool is_last = false; !is_last;) {
    is_last = is_over.load();
    while (world.read(reader)) {
    }
    if (!is_last) model::block_until([&] { return world.has_message() || is_over.peek(); }, model::kNever);
  }
  writer.join();
  model::check(written.size() >= 2 && world.received() == written, "the written messages arrive");
}

// The reader sleeps as RingTransport does, and a doorbell wakes it.
template <uint32_t kNumMessages>
void reader_sleeps() {
  World world;
  RingReader reader = World::open();
  bool is_rung = false;
  uint32_t num_told = 0;
  uint32_t num_sleeps = 0;
  sync::thread writer([&] {
    for (uint32_t sequence = 0; sequence < kNumMessages; ++sequence) {
      if (world.write_in_the_end(sequence) != Outcome::kWrittenToSleeper) continue;
      model::check(++num_told <= num_sleeps, "the writer wakes the reader once per sleep");
      model::point();
      is_rung = true;
    }
  });
  while (world.received().size() < kNumMessages) {
    if (world.read(reader)) continue;
    ++num_sleeps;
    reader.fall_asleep();
    if (reader.has_message()) continue;
    model::block_until([&] { return is_rung; }, model::kNever);
    is_rung = false;
  }
  writer.join();
  world.read_all(reader, kNumMessages);
}

constexpr int kAll = 1000;  // more deviations than there are decision points

constexpr model::Program kPrograms[] = {
    {"four_come_in_order", all_come_in_order<4>, {.most_deviations = 4}},
    {"eight_come_in_order", all_come_in_order<8>, {.most_deviations = 3}},
    {"opened_beside_its_writer", opened_beside_its_writer, {.most_deviations = 4}},
    {"full_ring_turns_away", full_ring_turns_away, {.most_deviations = 3}},
    {"reader_sleeps_before_the_first", reader_sleeps<1>, {.most_deviations = kAll}},
    {"reader_sleeps_between", reader_sleeps<4>, {.most_deviations = 4}},
};

}  // namespace
}  // namespace axon::transport

std::span<const axon::model::Program> axon::model::programs() {
  return axon::transport::kPrograms;
}
