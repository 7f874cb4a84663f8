// Rings: a ring by itself, and the transport that uses them above others.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <random>
#include <thread>

#include "transport/networks.hpp"
#include "transport/node.hpp"
#include "transport/rings/ring_transport.hpp"

namespace axon {
namespace {

using Outcome = RingWriter::Outcome;

class Ring : public testing::Test {
 protected:
  Outcome write(uint32_t sequence, const Bytes& payload) {
    return writer.write({.sequence = sequence, .fingerprint = {}},
                        {.data = payload.data(), .num_bytes = payload.size()});
  }
  // What comes next, or nothing.
  std::optional<std::pair<uint32_t, Bytes>> read() {
    std::optional<std::pair<uint32_t, Bytes>> message;
    while (!message && reader.read(1, [&](const MessageHeader& header, const Payload& payload) {
      message.emplace(header.sequence, Bytes(payload.bytes, payload.bytes + payload.num_bytes));
    }) != 0) {
    }
    return message;
  }

  RingWriter writer = RingWriter::make().value();
  // As a peer of another kind writes it.
  SharedPages pages = SharedPages::open(getpid(), writer.descriptor(), sizeof(RingMemory)).value();
  RingMemory& memory = *reinterpret_cast<RingMemory*>(pages.data());
  RingReader reader = RingReader::open(getpid(), writer.descriptor()).value();
};

TEST_F(Ring, brings_every_size_in_order_however_often_it_goes_around) {
  for (uint32_t sequence = 0; sequence < 20'000; ++sequence) {
    const Bytes sent = pattern(sequence * 7919 % (RingMemory::kMostBytes + 1), sequence);
    ASSERT_EQ(write(sequence, sent), Outcome::kWritten);
    const auto came = read();
    ASSERT_TRUE(came) << sequence;
    ASSERT_EQ(came->first, sequence);
    ASSERT_EQ(came->second, sent) << sequence;
    ASSERT_FALSE(reader.has_message());
  }
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
      const auto came = read();
      ASSERT_TRUE(came);
      ASSERT_EQ(came->first, num_read);
      ASSERT_EQ(came->second, pattern(came->second.size(), num_read));
    }
  }
  for (; num_read < num_written; ++num_read) ASSERT_EQ(read()->first, num_read);
  EXPECT_FALSE(read());
  EXPECT_EQ(times_full, 200U);
}

// A payload's bytes on the lines' first places are heads of those lines a lap later, exactly.
TEST_F(Ring, takes_no_payload_for_a_message) {
  const uint32_t num_lines = RingMemory::lines_of(RingMemory::kMostBytes);
  uint32_t line = 0;
  for (int message = 0; message < 500; ++message) {
    const uint32_t left = RingMemory::kNumLines - line % RingMemory::kNumLines;
    if (num_lines > left) line += left;
    Bytes forged(RingMemory::kMostBytes);
    for (uint32_t i = 1; i < num_lines; ++i) {
      const RingHead head{.kind = RingHead::Kind::kMessage, .line = line + i + RingMemory::kNumLines};
      const size_t offset = i * kLineBytes - sizeof head - sizeof(MessageHeader);
      std::memcpy(forged.data() + offset, &head, std::min(sizeof head, forged.size() - offset));
    }
    ASSERT_EQ(write(7, forged), Outcome::kWritten);
    line += num_lines;
    const auto came = read();
    ASSERT_TRUE(came);
    ASSERT_EQ(came->second, forged);
    const auto another = read();
    ASSERT_FALSE(another) << "message " << message << " begins within another";
  }
}

TEST_F(Ring, is_broken_by_what_no_writer_writes) {
  const auto far = static_cast<uint16_t>(RingMemory::kMostBytes + 1);
  const RingHead heads[]{{.kind = RingHead::Kind::kMessage, .num_bytes = far, .line = 0},
                         {.kind = RingHead::Kind::kMessage, .num_bytes = UINT16_MAX, .line = 0},
                         {.kind = static_cast<RingHead::Kind>(3), .line = 0}};
  for (const RingHead& head : heads) {
    RingReader another = RingReader::open(getpid(), writer.descriptor()).value();
    memory.lines[0].head.store(head);
    EXPECT_EQ(another.read(16, [](const MessageHeader&, const Payload&) { FAIL(); }), 1U);
    EXPECT_TRUE(another.is_broken());
  }
  // One that would end behind the ring's end.
  memory.lines[0].head.store({.kind = RingHead::Kind::kWrap, .line = 0});
  memory.lines[0].head.store({});
  for (uint32_t sequence = 0; sequence < RingMemory::kNumLines - 1; ++sequence) {
    ASSERT_EQ(write(sequence, {}), Outcome::kWritten);
    ASSERT_TRUE(read());
  }
  const uint32_t last = RingMemory::kNumLines - 1;
  memory.lines[last].head.store({.kind = RingHead::Kind::kMessage, .num_bytes = 17, .line = last});
  EXPECT_FALSE(read());
  EXPECT_TRUE(reader.is_broken());
}

TEST_F(Ring, ends_a_look_although_it_goes_around_for_ever) {
  for (uint32_t lap = 0; lap < 3; ++lap) {
    memory.lines[0].head.store({.kind = RingHead::Kind::kWrap, .line = lap * RingMemory::kNumLines});
    EXPECT_EQ(reader.read(16, [](const MessageHeader&, const Payload&) { FAIL(); }), 1U);
  }
}

// Each line is looked at once, whatever stands there afterwards.
TEST_F(Ring, believes_no_second_look) {
  for (uint32_t sequence = 0; sequence < 3; ++sequence) {
    const Bytes sent = pattern(200, sequence);
    RingLine& first = memory.lines[sequence * RingMemory::lines_of(200)];
    ASSERT_EQ(write(sequence, sent), Outcome::kWritten);
    const auto change = [&](const MessageHeader& header, const Payload& payload) {
      first.head.store({.kind = RingHead::Kind::kMessage, .num_bytes = 1000, .line = first.head.load().line});
      std::memset(first.begin(), 0xFF, sizeof header);
      EXPECT_EQ(header.sequence, sequence);
      EXPECT_EQ(payload.num_bytes, sent.size());
    };
    ASSERT_EQ(reader.read(1, change), 1U) << "the message behind is not where it should be";
  }
  EXPECT_FALSE(reader.is_broken());
}

TEST_F(Ring, is_written_within_its_bounds_whatever_its_reader_says) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
  for (uint32_t sequence = 0; sequence < 20'000; ++sequence) {
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
    const auto came = read();
    if (!came) continue;
    ASSERT_EQ(came->first, sequence);
    ASSERT_EQ(came->second, pattern(sequence % 300, sequence));
    ++sequence;
  }
}

TEST(SharedPages, opens_nothing_but_what_was_made_so) {
  const SharedPages mine = SharedPages::make(8192).value();
  EXPECT_TRUE(SharedPages::open(getpid(), mine.descriptor(), 8192).ok());
  EXPECT_FALSE(SharedPages::open(getpid(), mine.descriptor(), 4096).ok());
  EXPECT_FALSE(SharedPages::open(getpid(), 1 << 20, 8192).ok());
  EXPECT_FALSE(SharedPages::open(INT32_MAX, mine.descriptor(), 8192).ok());
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_FALSE(SharedPages::open(getpid(), unsealed.get(), 8192).ok());
  EXPECT_NE(ftruncate(mine.descriptor(), 4096), 0) << "it can be shortened";
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const FileDescriptor read_end(ends[0]);
  const FileDescriptor write_end(ends[1]);
  EXPECT_FALSE(SharedPages::open(getpid(), read_end.get(), 8192).ok());
}

size_t num_mapped() {
  std::ifstream maps("/proc/self/maps");
  size_t num_found = 0;
  for (std::string line; std::getline(maps, line);) num_found += line.find("memfd:axon") != std::string::npos ? 1 : 0;
  return num_found;
}

class RingTransports : public testing::Test {
 protected:
  static bool has_ring(Node& node, PeerId peer) {
    return std::ranges::count(node.transport().lanes(peer).value(), Lane{"ring", "memory"}) == 1;
  }
  bool run(const std::function<bool()>& condition) { return drive({&first, &second}, condition); }
  // The first message takes the network.
  void warm_up() {
    first.send(to_second, pattern(8, 1));
    ASSERT_TRUE(run([&] { return second.num_complete() == 1 && has_ring(first, to_second); }));
    second.arrivals.clear();
    first.sends.clear();
  }
  static uint64_t key_of(Node& node) {
    RingAddress end;
    std::memcpy(&end, node.transport().address().last(sizeof end).data(), sizeof end);
    return end.key;
  }
  // To the second one, as if who has this key had offered it.
  void offer_broken(uint64_t key) {
    Node stranger(below->make_transport());
    const auto address = second.transport().address();
    const PeerId peer =
        stranger.transport().add_peer(address.first(address.size() - sizeof(RingAddress)), true).value();
    RingWriter ring = RingWriter::make().value();
    const SharedPages pages = SharedPages::open(getpid(), ring.descriptor(), sizeof(RingMemory)).value();
    auto& memory = *reinterpret_cast<RingMemory*>(pages.data());
    memory.lines[0].head.store({.kind = RingHead::Kind::kMessage, .num_bytes = UINT16_MAX, .line = 0});
    const RingOffer offer{.key = key, .pid = getpid(), .descriptor = ring.descriptor()};
    const auto bytes = std::as_bytes(std::span(&offer, 1));
    send_raw(stranger, peer, key_of(second), OperationKind::kRingOffer,
             {.data = bytes.data(), .num_bytes = bytes.size()});
    ASSERT_TRUE(run([&] { return ring.is_read(); }));
  }
  // Of a transport that has no rings itself.
  void send_raw(Node& node, PeerId peer, uint64_t key, OperationKind kind, ConstBuffer payload) {
    MessageHeader header;
    header.key = key;
    header.fingerprint.operation = kind;
    Transfer sent;
    if (auto status = node.transport().send(peer, header, payload, sent)) sent.tell(std::move(*status));
    ASSERT_TRUE(drive({&node, &first, &second}, [&] { return sent.finished(); }));
  }

  std::unique_ptr<Network> below = kLoopback.make();
  Node first{with_rings(below->make_transport())};
  Node second{with_rings(below->make_transport())};
  PeerId to_second = first.meet(second, true);
  PeerId to_first = second.meet(first, true);
};

TEST_F(RingTransports, take_a_ring_for_what_is_short) {
  EXPECT_FALSE(has_ring(first, to_second));
  warm_up();
  first.send(to_second, pattern(RingMemory::kMostBytes, 1));
  drive({&second}, [&] { return second.num_complete() == 1; });  // the sender need not do anything
  EXPECT_EQ(second.num_complete(), 1U);
  EXPECT_FALSE(has_ring(second, to_first));
}

TEST_F(RingTransports, let_nothing_overtake_what_is_in_a_ring) {
  warm_up();
  for (uint32_t sequence = 0; sequence < 40; ++sequence) first.send(to_second, pattern(8, 1), sequence);
  first.send(to_second, pattern(5000, 1), 40);
  MessageHeader last{.sequence = 41, .fingerprint = {}};
  last.fingerprint.operation = OperationKind::kClose;
  Transfer sent;
  if (auto status = first.transport().send(to_second, last, {}, sent)) sent.tell(std::move(*status));
  ASSERT_TRUE(run([&] { return second.num_complete() == 42; }));
  for (uint32_t sequence = 0; sequence < 42; ++sequence) {
    EXPECT_EQ(second.arrivals[sequence].header.sequence, sequence);
  }
}

TEST_F(RingTransports, go_the_other_way_while_the_ring_is_full) {
  warm_up();
  constexpr uint32_t kNumMessages = 3 * RingMemory::kNumLines;
  for (uint32_t sequence = 0; sequence < kNumMessages; ++sequence)
    first.send(to_second, pattern(8, sequence), sequence);
  ASSERT_TRUE(run([&] { return second.num_complete() == kNumMessages && first.all_sends_finished(); }));
  std::vector<bool> seen(kNumMessages);
  for (const Arrival& arrival : second.arrivals) {
    EXPECT_FALSE(seen[arrival.header.sequence]);
    seen[arrival.header.sequence] = true;
    EXPECT_EQ(arrival.bytes(), pattern(8, arrival.header.sequence));
  }
}

TEST_F(RingTransports, wake_who_sleeps) {
  warm_up();
  const auto is_readable = [&](int timeout_ms) {
    pollfd event{.fd = second.transport().event_fd(), .events = POLLIN, .revents = 0};
    return poll(&event, 1, timeout_ms) == 1;
  };
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(drive({&second}, [&] { return second.transport().arm(); }));
    EXPECT_FALSE(is_readable(0));
    first.send(to_second, pattern(8, 1));
    EXPECT_TRUE(is_readable(1000));
    ASSERT_TRUE(drive({&second}, [&] { return second.num_complete() == 1; }));
    second.arrivals.clear();
  }
  EXPECT_EQ(second.num_refused, 0U);
  first.send(to_second, pattern(8, 1));
  EXPECT_FALSE(second.transport().arm()) << "with a message in the ring";
}

TEST_F(RingTransports, refuse_offers_that_are_not_theirs) {
  Node stranger(below->make_transport());
  const uint64_t key = key_of(second);
  const auto address = second.transport().address();
  const PeerId peer = stranger.transport().add_peer(address.first(address.size() - sizeof(RingAddress)), true).value();
  const size_t num_before = num_mapped();
  RingWriter ring = RingWriter::make().value();
  RingOffer offer{.key = 5, .pid = getpid(), .descriptor = ring.descriptor()};
  const auto bytes = std::as_bytes(std::span(&offer, 1));
  const ConstBuffer payload{.data = bytes.data(), .num_bytes = bytes.size()};
  send_raw(stranger, peer, key + 1, OperationKind::kRingOffer, payload);
  send_raw(stranger, peer, key, OperationKind::kRingOffer, {.data = bytes.data(), .num_bytes = 8});
  offer.key = 0;
  send_raw(stranger, peer, key, OperationKind::kRingOffer, payload);
  offer.key = key;
  send_raw(stranger, peer, key, OperationKind::kRingOffer, payload);
  offer.key = 5;
  const SharedPages shorter = SharedPages::make(4096).value();
  offer.descriptor = shorter.descriptor();
  send_raw(stranger, peer, key, OperationKind::kRingOffer, payload);
  send_raw(stranger, peer, key + 1, OperationKind::kRingWake, {});
  send_raw(stranger, peer, key, static_cast<OperationKind>(130), {});
  ASSERT_TRUE(run([&] { return second.num_refused == 7; }));
  offer.descriptor = 1 << 20;  // as of who has ended meanwhile
  send_raw(stranger, peer, key, OperationKind::kRingOffer, payload);
  drive({&second}, [] { return false; }, std::chrono::milliseconds(20));
  EXPECT_EQ(second.num_refused, 7U);
  EXPECT_FALSE(ring.is_read());
  EXPECT_EQ(num_mapped(), num_before + 2);  // the stranger's own
  offer.descriptor = ring.descriptor();
  for (int time = 0; time < 3; ++time) send_raw(stranger, peer, key, OperationKind::kRingOffer, payload);
  ASSERT_TRUE(run([&] { return ring.is_read() && second.num_refused == 9; }));
  EXPECT_EQ(num_mapped(), num_before + 3) << "once, however often it is offered";
}

TEST_F(RingTransports, lose_a_peer_whose_ring_makes_no_sense) {
  offer_broken(key_of(first));
  ASSERT_TRUE(run([&] { return !second.lost.empty(); }));
  EXPECT_EQ(second.lost, std::vector{to_first});
  EXPECT_EQ(second.num_refused, 1U);
}

TEST_F(RingTransports, let_go_of_a_ring_that_makes_no_sense_of_who_has_not_been_met) {
  const size_t num_before = num_mapped();
  offer_broken(5);
  EXPECT_TRUE(run([&] { return num_mapped() == num_before; }));
  EXPECT_TRUE(second.lost.empty());
  EXPECT_EQ(second.num_refused, 1U);
}

TEST_F(RingTransports, let_go_of_the_memory_of_who_is_dropped) {
  const size_t num_before = num_mapped();
  warm_up();
  EXPECT_EQ(num_mapped(), num_before + 2);
  first.transport().drop_peer(to_second);
  second.transport().drop_peer(to_first);
  EXPECT_TRUE(run([&] { return num_mapped() == num_before; }));
}

TEST_F(RingTransports, have_so_many_rings_and_no_more) {
  constexpr size_t kNumPeers = 70;
  std::vector<std::unique_ptr<Node>> others;
  std::vector<PeerId> peers;
  std::vector<Node*> all{&first};
  for (size_t i = 0; i < kNumPeers; ++i) {
    others.push_back(std::make_unique<Node>(with_rings(below->make_transport())));
    all.push_back(others.back().get());
    peers.push_back(first.meet(*others.back(), true));
    others.back()->meet(first, true);
  }
  for (int round = 0; round < 3; ++round) {
    for (const PeerId peer : peers) first.send(peer, pattern(8, 1));
    for (const auto& other : others) other->send(0, pattern(8, 1));
    ASSERT_TRUE(drive(all, [&] {
      return first.num_complete() == kNumPeers &&
             std::ranges::all_of(others, [](const auto& other) { return other->num_complete() == 1; });
    }));
    first.arrivals.clear();
    for (const auto& other : others) other->arrivals.clear();
  }
  EXPECT_EQ(std::ranges::count_if(peers, [&](PeerId peer) { return has_ring(first, peer); }), 64);
}

TEST(RingUse, never_makes_one_in_either_direction) {
  const auto below = kLoopback.make();
  Node with(with_rings(below->make_transport()));
  Node without(with_rings(below->make_transport(), RingUse::kNever));
  const size_t num_before = num_mapped();
  const PeerId to_without = with.meet(without, true);
  const PeerId to_with = without.meet(with, true);
  for (int round = 0; round < 3; ++round) {
    with.send(to_without, pattern(8, 1));
    without.send(to_with, pattern(8, 1));
    const size_t num_rounds = static_cast<size_t>(round) + 1;
    ASSERT_TRUE(drive({&with, &without},
                      [&] { return with.num_complete() == num_rounds && without.num_complete() == num_rounds; }));
  }
  EXPECT_EQ(num_mapped(), num_before);
}

}  // namespace
}  // namespace axon
