// Tests a ring on its own: the guarantees that its writer and its reader get, and the input that they must reject.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <random>
#include <thread>

#include "transport/node.hpp"
#include "transport/rings/ring.hpp"

namespace axon::transport {
namespace {

using Outcome = RingWriter::Outcome;

// Lets a test read a ring in which it expects only messages, and neither answers nor DATA.
template <typename Deliver>
struct OnlyMessages {
  Deliver deliver;

  void operator()(RingHead::Kind kind, const MessageHeader& header, const Payload& payload) {
    deliver(kind, header, payload);
  }
  void operator()(RingHead::Kind, const TransferHeader&, const Payload&) { ADD_FAILURE() << "no message was written"; }
};

OperationHeader numbered(uint32_t sequence) {
  return {.fingerprint = {.operation = OperationKind::kPointToPoint}, .sequence = sequence};
}

class Ring : public testing::Test {
 protected:
  Outcome write(uint32_t sequence, const Bytes& payload) {
    return writer.write(RingHead::Kind::kMessage, numbered(sequence),
                        {.data = payload.data(), .num_bytes = payload.size()});
  }
  // Reads the next message, if there is one.
  std::optional<std::pair<uint32_t, Bytes>> read() {
    std::optional<std::pair<uint32_t, Bytes>> message;
    const auto take = [&](RingHead::Kind, const MessageHeader& header, const Payload& payload) {
      const Bytes bytes(payload.bytes, payload.bytes + payload.num_bytes);
      message.emplace(header.as<OperationHeader>().sequence, bytes);
    };
    while (!message && reader.read(1, OnlyMessages{take}) != 0) {
    }
    return message;
  }

  static constexpr uint64_t kWriter = 1;
  static constexpr uint64_t kReader = 2;

  RingWriter writer = RingWriter::make(kWriter, kReader).value();
  // Writes as a foreign peer would.
  SharedPages pages = SharedPages::open(getpid(), writer.descriptor(), sizeof(RingMemory)).value();
  RingMemory& memory = *reinterpret_cast<RingMemory*>(pages.data());
  RingReader reader = RingReader::open(getpid(), writer.descriptor(), kWriter, kReader).value();
};

TEST_F(Ring, brings_every_size_in_order_however_often_it_goes_around) {
  for (uint32_t sequence = 0; sequence < 2'000; ++sequence) {
    const Bytes sent = pattern(sequence * 7919 % (RingMemory::kMostBytes + 1), sequence);
    ASSERT_EQ(write(sequence, sent), Outcome::kWritten);
    const auto received = read();
    ASSERT_TRUE(received) << sequence;
    ASSERT_EQ(received->first, sequence);
    ASSERT_EQ(received->second, sent) << sequence;
    ASSERT_FALSE(reader.has_message());
  }
}

bool operator==(const MessageHeader& left, const MessageHeader& right) {
  return std::memcmp(&left, &right, sizeof left) == 0;
}

TEST_F(Ring, carries_answers_with_a_reason_of_48_bytes_in_one_entry) {
  const Bytes reason = pattern(48, 1);
  const ConstBuffer payload{.data = reason.data(), .num_bytes = reason.size()};
  uint32_t entry = 0;
  for (const RingHead::Kind kind :
       {RingHead::Kind::kAck, RingHead::Kind::kNack, RingHead::Kind::kCts, RingHead::Kind::kData}) {
    ASSERT_EQ(writer.write(kind, TransferHeader{.number = 5}, payload), Outcome::kWritten);
    EXPECT_EQ(memory.entries[entry++].head.load().kind, kind);
    bool has_arrived = false;
    const auto check = [&](RingHead::Kind found, const auto& header, const Payload& bytes) {
      if constexpr (std::is_same_v<decltype(header), const TransferHeader&>) has_arrived = header.number == 5;
      EXPECT_EQ(found, kind);
      EXPECT_EQ(Bytes(bytes.bytes, bytes.bytes + bytes.num_bytes), reason);
    };
    EXPECT_EQ(reader.read(16, check), 1U);
    EXPECT_TRUE(has_arrived);
  }
}

// Calls of more connections than the key table has entries, some of which share an entry, mixed with payload frames,
// answers and other messages.
TEST_F(Ring, brings_the_headers_of_calls_whole_however_short_they_are) {
  std::mt19937_64 random(1);
  std::array<uint64_t, 100> keys;
  std::ranges::generate(keys, random);
  for (uint32_t number = 0; number < 10'000; ++number) {
    CallHeader call{.key = keys[random() % keys.size()], .number = number};
    call.kind = static_cast<MessageKind>(14 + random() % 12);
    if (random() % 8 == 0) call.tensor = 1 + random() % 3;
    if (random() % 8 == 0) call.sent_at_ms = call.remaining_ms = random() % 3;
    if (random() % 8 == 0) call.num_answers = random();
    const MessageHeader sent = call;
    const Bytes payload = pattern(random() % 100, number);
    ASSERT_EQ(writer.write(RingHead::Kind::kMessage, sent, {payload.data(), payload.size()}), Outcome::kWritten);
    bool has_arrived = false;
    const auto check = [&](RingHead::Kind kind, const MessageHeader& received, const Payload& bytes) {
      has_arrived = true;
      EXPECT_EQ(kind, RingHead::Kind::kMessage);
      EXPECT_TRUE(received == sent) << number;
      EXPECT_EQ(Bytes(bytes.bytes, bytes.bytes + bytes.num_bytes), payload);
    };
    while (!has_arrived) ASSERT_EQ(reader.read(1, OnlyMessages{check}), 1U);
    ASSERT_FALSE(HasFailure());
  }
}

TEST_F(Ring, carries_a_small_call_in_one_entry) {
  const CallHeader header{.key = 7, .kind = MessageKind::kInvoke};
  const Bytes payload(48);
  for (int i = 0; i < 2; ++i) writer.write(RingHead::Kind::kMessage, header, {payload.data(), payload.size()});
  // Following the first message, whose header is whole.
  EXPECT_EQ(memory.entries[2].head.load().kind, RingHead::Kind::kCall);
  writer.write(RingHead::Kind::kMessage, header, {payload.data(), payload.size()});
  EXPECT_EQ(memory.entries[3].head.load().kind, RingHead::Kind::kCall);
  EXPECT_EQ(memory.entries[3].head.load().entry, 3U);
}

class WithdrawnCalls : public Ring {
 protected:
  void send(uint64_t key, uint32_t number, MessageKind kind = MessageKind::kInvoke, size_t num_bytes = 8) {
    const CallHeader header{.key = key, .kind = kind, .number = number};
    const Bytes payload(num_bytes);
    ASSERT_NE(writer.write(RingHead::Kind::kMessage, header, {payload.data(), payload.size()}), Outcome::kFull);
  }
  void withdraw(uint64_t key, uint32_t number) { writer.withdraw({.key = key, .number = number}); }
  struct Received {
    uint64_t key;
    uint32_t number;
    MessageKind kind;
    friend bool operator==(const Received&, const Received&) = default;
  };
  std::vector<Received> all() {
    std::vector<Received> received;
    const auto take = [&](RingHead::Kind, const MessageHeader& header, const Payload&) {
      received.push_back({header.key, header.as<CallHeader>().number, header.kind});
    };
    reader.read(~0U, OnlyMessages{take});
    return received;
  }
  static constexpr auto kInvoke = MessageKind::kInvoke;
  static constexpr auto kWithdrawn = MessageKind::kWithdrawn;
};

TEST_F(WithdrawnCalls, are_found_as_such_unless_they_have_been_read) {
  for (uint32_t number = 0; number < 3; ++number) send(7, number);
  send(7, 1, MessageKind::kInvokePayload);
  send(7, 3, MessageKind::kTell);
  EXPECT_EQ(reader.read(1, [](RingHead::Kind, const auto&, const Payload&) {}), 1U);
  for (uint32_t number = 0; number < 5; ++number) {
    if (number != 2) withdraw(7, number);
  }
  withdraw(8, 2);
  const std::vector<Received> expected{
      {7, 1, kWithdrawn}, {7, 2, kInvoke}, {7, 1, MessageKind::kInvokePayload}, {7, 3, kWithdrawn}};
  EXPECT_EQ(all(), expected);
}

// Two connections share a key table entry, and each has calls with the same numbers.
TEST_F(WithdrawnCalls, are_not_taken_for_those_of_another_connection) {
  constexpr uint64_t kOther = 7 + KeyTable::kNumKeys;
  for (const uint64_t key : {uint64_t{7}, uint64_t{7}, kOther, kOther, kOther}) {
    send(key, static_cast<uint32_t>(key == 7));
    send(key, 5);
  }
  withdraw(kOther, 5);
  const std::vector<Received> received = all();
  ASSERT_EQ(received.size(), 10U);
  EXPECT_EQ(received[1], (Received{7, 5, kInvoke}));
  EXPECT_EQ(received[3], (Received{7, 5, kInvoke}));
  EXPECT_EQ(std::ranges::count(received, Received{kOther, 5, kWithdrawn}), 1);
}

TEST_F(WithdrawnCalls, are_found_wherever_the_ring_goes_around) {
  std::mt19937 random(1);
  for (uint32_t number = 0; number < 5'000; ++number) {
    for (uint32_t i = 0; i < 3; ++i) send(7, 3 * number + i, kInvoke, random() % 20'000);
    withdraw(7, 3 * number + 1);
    std::vector<Received> received;
    while (received.size() < 3) std::ranges::copy(all(), std::back_inserter(received));
    EXPECT_EQ(received[0].kind, kInvoke);
    EXPECT_EQ(received[1].kind, kWithdrawn);
    EXPECT_EQ(received[2].kind, kInvoke);
    ASSERT_FALSE(HasFailure()) << number;
  }
}

TEST_F(WithdrawnCalls, are_not_looked_for_beyond_the_ring_whatever_its_reader_says) {
  send(7, 1);
  for (const uint32_t num_taken : {1U, 2U, 0x8000'0000U, ~0U, ~0U - 4095U}) {
    memory.num_taken.store(num_taken);
    withdraw(7, 1);
  }
  memory.num_taken.store(0);
  memory.entries[0].head.store({.kind = RingHead::Kind::kMessage, .num_bytes = 0xFFFFFF, .entry = 0});
  withdraw(7, 2);
}

// A ShortCallHeader with an index that no whole header has stored, or with any other content, belongs to no receiver.
TEST_F(Ring, takes_no_short_header_for_one_that_was_named) {
  const ShortCallHeader forged{.number = 5, .kind = MessageKind::kReply, .key = 255, .reserved = 1};
  std::memcpy(memory.entries[0].begin(), &forged, sizeof forged);
  memory.entries[0].head.store({.kind = RingHead::Kind::kCall, .num_bytes = 0, .entry = 0});
  const auto check = [&](RingHead::Kind, const MessageHeader& header, const Payload&) {
    EXPECT_EQ(header.key, 0U);
    EXPECT_EQ(header.as<CallHeader>().number, 5U);
  };
  EXPECT_EQ(reader.read(1, OnlyMessages{check}), 1U);
  EXPECT_FALSE(reader.is_broken());
}

TEST_F(Ring, is_full_at_some_time_and_loses_nothing_then) {
  std::mt19937 random(1);
  uint32_t num_written = 0;
  uint32_t num_read = 0;
  unsigned times_full = 0;
  for (int round = 0; round < 200; ++round) {
    while (write(num_written, pattern(random() % (RingMemory::kMostBytes + 1), num_written)) != Outcome::kFull) {
      ++num_written;
    }
    ++times_full;
    for (unsigned left = random() % 100; left != 0 && num_read < num_written; --left, ++num_read) {
      const auto received = read();
      ASSERT_TRUE(received);
      ASSERT_EQ(received->first, num_read);
      ASSERT_EQ(received->second, pattern(received->second.size(), num_read));
    }
  }
  for (; num_read < num_written; ++num_read) ASSERT_EQ(read()->first, num_read);
  EXPECT_FALSE(read());
  EXPECT_EQ(times_full, 200U);
}

// The payload's bytes at the start of each entry are exactly that entry's head in the next lap.
TEST_F(Ring, takes_no_payload_for_a_message) {
  const uint32_t num_entries = RingMemory::entries_of(RingMemory::kMostBytes);
  uint32_t entry = 0;
  for (int message = 0; message < 20; ++message) {
    const uint32_t left = RingMemory::kNumEntries - entry % RingMemory::kNumEntries;
    if (num_entries > left) entry += left;
    Bytes forged(RingMemory::kMostBytes);
    for (uint32_t i = 1; i < num_entries; ++i) {
      const RingHead head{.kind = RingHead::Kind::kMessage, .entry = entry + i + RingMemory::kNumEntries};
      const size_t offset = i * kEntryBytes - sizeof head - sizeof(MessageHeader);
      std::memcpy(forged.data() + offset, &head, std::min(sizeof head, forged.size() - offset));
    }
    ASSERT_EQ(write(7, forged), Outcome::kWritten);
    entry += num_entries;
    const auto received = read();
    ASSERT_TRUE(received);
    ASSERT_EQ(received->second, forged);
    const auto another = read();
    ASSERT_FALSE(another) << "message " << message << " begins within another";
  }
}

TEST_F(Ring, is_broken_by_what_no_writer_writes) {
  const RingHead heads[]{{.kind = RingHead::Kind::kMessage, .num_bytes = RingMemory::kMostBytes + 1, .entry = 0},
                         {.kind = RingHead::Kind::kMessage, .num_bytes = 0xFFFFFF, .entry = 0},
                         {.kind = static_cast<RingHead::Kind>(9), .entry = 0}};
  for (const RingHead& head : heads) {
    RingReader another = RingReader::open(getpid(), writer.descriptor(), kWriter, kReader).value();
    memory.entries[0].head.store(head);
    EXPECT_EQ(another.read(16, [](RingHead::Kind, const auto&, const Payload&) { FAIL(); }), 1U);
    EXPECT_TRUE(another.is_broken());
  }
  // A message that would end past the ring's end.
  memory.entries[0].head.store({.kind = RingHead::Kind::kWrap, .entry = 0});
  memory.entries[0].head.store({});
  for (uint32_t sequence = 0; sequence < RingMemory::kNumEntries - 1; ++sequence) {
    ASSERT_EQ(write(sequence, {}), Outcome::kWritten);
    ASSERT_TRUE(read());
  }
  const uint32_t last = RingMemory::kNumEntries - 1;
  memory.entries[last].head.store({.kind = RingHead::Kind::kMessage, .num_bytes = 17, .entry = last});
  EXPECT_FALSE(read());
  EXPECT_TRUE(reader.is_broken());
}

TEST_F(Ring, ends_a_look_although_it_goes_around_for_ever) {
  for (uint32_t lap = 0; lap < 3; ++lap) {
    memory.entries[0].head.store({.kind = RingHead::Kind::kWrap, .entry = lap * RingMemory::kNumEntries});
    EXPECT_EQ(reader.read(16, [](RingHead::Kind, const auto&, const Payload&) { FAIL(); }), 1U);
  }
}

// Each header is read once, even if the writer changes it afterwards.
TEST_F(Ring, believes_no_second_look) {
  for (uint32_t sequence = 0; sequence < 3; ++sequence) {
    const Bytes sent = pattern(200, sequence);
    RingEntry& first = memory.entries[sequence * RingMemory::entries_of(200)];
    ASSERT_EQ(write(sequence, sent), Outcome::kWritten);
    const auto change = [&](RingHead::Kind, const MessageHeader& header, const Payload& payload) {
      first.head.store({.kind = RingHead::Kind::kMessage, .num_bytes = 1000, .entry = first.head.load().entry});
      std::memset(first.begin(), 0xFF, sizeof header);
      EXPECT_EQ(header.as<OperationHeader>().sequence, sequence);
      EXPECT_EQ(payload.num_bytes, sent.size());
    };
    ASSERT_EQ(reader.read(1, OnlyMessages{change}), 1U) << "the next message is not where it should be";
  }
  EXPECT_FALSE(reader.is_broken());
}

TEST_F(Ring, is_written_within_its_bounds_whatever_its_reader_says) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
  for (uint32_t sequence = 0; sequence < 2'000; ++sequence) {
    memory.num_taken.store(static_cast<uint32_t>(random()));
    memory.is_read.store(static_cast<uint32_t>(random()));
    memory.sleeps.store(random() % 2);
    write(sequence, pattern(random() % (RingMemory::kMostBytes + 1), sequence));
  }
  const auto page_size = static_cast<size_t>(getpagesize());
  const auto* const end = reinterpret_cast<const std::byte*>(&memory + 1);
  const auto* const end_of_pages = pages.data() + (sizeof memory + page_size - 1) / page_size * page_size;
  EXPECT_TRUE(std::all_of(end, end_of_pages, [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_F(Ring, tells_once_of_a_sleeping_reader) {
  EXPECT_EQ(write(0, {}), Outcome::kWritten);
  reader.fall_asleep();
  EXPECT_EQ(write(1, {}), Outcome::kWrittenToSleeper);
  EXPECT_EQ(write(2, {}), Outcome::kWritten);
}

TEST_F(Ring, carries_what_one_thread_writes_to_another) {
  constexpr uint32_t kNumMessages = 200'000;
  std::jthread other([this] {
    for (uint32_t sequence = 0; sequence < kNumMessages;) {
      const Bytes bytes = pattern(sequence % 300, sequence);
      if (write(sequence, bytes) != Outcome::kFull) ++sequence;
    }
  });
  for (uint32_t sequence = 0; sequence < kNumMessages;) {
    const auto received = read();
    if (!received) continue;
    ASSERT_EQ(received->first, sequence);
    ASSERT_EQ(received->second, pattern(sequence % 300, sequence));
    ++sequence;
  }
}

}  // namespace
}  // namespace axon::transport
