// Tests memory that an engine reads as another process's ring, while that process writes arbitrary data into it.
// Invalid messages are refused and counted, and an invalid ring makes its writer a lost peer. Other processes are not
// affected.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>

#include "engine/engines.hpp"
#include "transport/rings/ring_transport.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

using Integers = std::vector<int32_t>;

constexpr uint32_t kTag = 3;
constexpr uint32_t kMember = 2;  // the rank in whose name the test sends

// A message as it lies in a ring.
struct Written {
  transport::MessageHeader header;
  std::vector<std::byte> payload;

  ConstBuffer bytes() const noexcept { return {.data = payload.data(), .num_bytes = payload.size()}; }
};

// A ring and its memory, for tests that write it without a RingWriter.
struct SharedRing {
  transport::RingWriter writer = transport::RingWriter::make(0, 0).value();
  SharedPages pages = SharedPages::open(getpid(), writer.descriptor(), sizeof(transport::RingMemory)).value();
  transport::RingMemory& memory = *reinterpret_cast<transport::RingMemory*>(pages.data());
};

// A process that can reach an engine and has read its address. It knows as much as a rank of the group.
class Process final : public transport::Receiver {
 public:
  static constexpr uint64_t kKey = 0x5EED;  // the key of its doorbell

  explicit Process(transport::LoopbackFabric& fabric) : transport_(fabric.make_transport()) {
    transport_->set_receiver(*this);
  }

  transport::RingAddress ring_address(uint64_t key = kKey) const {
    return {.key = key, .identity = 0, .pid = getpid(), .page = doorbell_.page(), .pipe = doorbell_.pipe()};
  }
  PeerAddress address() const {
    PeerAddress peer_address{.key = 77, .process = {kKey, kKey}, .host = 1, .pid = getpid(), .transport_address = {}};
    const auto end = std::bit_cast<std::array<std::byte, sizeof(transport::RingAddress)>>(ring_address());
    peer_address.transport_address.assign(transport_->address().begin(), transport_->address().end());
    peer_address.transport_address.insert(peer_address.transport_address.end(), end.begin(), end.end());
    return peer_address;
  }

  // Calls the process with this address. `key_difference` is added to the key, to name another process.
  void call(const PeerAddress& peer_address, transport::RingCall::Kind kind, int descriptor = -1,
            uint64_t key_difference = 0, uint64_t own_key = kKey) {
    const transport::RingAddress called = address_in(peer_address);
    const bool is_taken = transport::WakeUpPipe::open(called).value().call(
        {.key = called.key + key_difference, .caller = ring_address(own_key), .kind = kind, .descriptor = descriptor});
    EXPECT_TRUE(is_taken || kind == transport::RingCall::Kind::kWake);  // a sleeper is woken by the calls before it
  }
  void wake(const PeerAddress& peer_address) { call(peer_address, transport::RingCall::Kind::kWake); }

  void offer(const PeerAddress& peer_address, SharedRing& ring) {
    ring.memory.writer = kKey;
    ring.memory.reader = address_in(peer_address).key;
    call(peer_address, transport::RingCall::Kind::kRing, ring.writer.descriptor());
    const sync::Clock::time_point deadline = sync::Clock::now() + 10s;
    while (!ring.writer.is_read() && sync::Clock::now() < deadline) std::this_thread::yield();
    ASSERT_TRUE(ring.writer.is_read());
  }

 private:
  static transport::RingAddress address_in(const PeerAddress& peer_address) {
    transport::RingAddress address;
    std::memcpy(&address, std::span(peer_address.transport_address).last(sizeof address).data(), sizeof address);
    return address;
  }
  void on_message(const transport::MessageHeader&, const transport::Payload&) noexcept override {}
  void on_peer_lost(transport::PeerId, Status) noexcept override {}

  std::unique_ptr<transport::Transport> transport_;
  transport::RingDoorbell doorbell_ = transport::RingDoorbell::make(kKey).value();
};

// Returns all rings that this process has mapped, each once.
std::vector<const transport::RingMemory*> mapped_rings() {
  std::map<std::string, const transport::RingMemory*> found;  // keyed by inode
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    std::array<char, 32> inode{};
    if (line.find("memfd:axon") == std::string::npos) continue;
    if (std::sscanf(line.c_str(), "%lx-%lx %*s %*s %*s %31s", &begin, &end, inode.data()) != 3) continue;
    if (end - begin >= sizeof(transport::RingMemory))
      found.emplace(inode.data(), reinterpret_cast<const transport::RingMemory*>(begin));
  }
  std::vector<const transport::RingMemory*> rings;
  for (const auto& [inode, ring] : found) rings.push_back(ring);
  return rings;
}

// Returns the messages of a ring's first lap.
std::vector<Written> messages_in(const transport::RingMemory& memory) {
  std::vector<Written> messages;
  for (uint32_t entry = 0; entry < transport::RingMemory::kNumEntries;) {
    const transport::RingHead head = memory.entries[entry].head.load();
    if (head.kind != transport::RingHead::Kind::kMessage || head.entry != entry) break;
    const auto* const begin = reinterpret_cast<const std::byte*>(&memory.entries[entry]) + sizeof head;
    Written& message = messages.emplace_back();
    std::memcpy(&message.header, begin, sizeof message.header);
    const std::span payload(begin + sizeof message.header, head.num_bytes);
    message.payload.assign(payload.begin(), payload.end());
    entry += transport::RingMemory::entries_of(head.num_bytes);
  }
  return messages;
}

// Two engines, and a foreign process in place of the third rank of their group.
class HostileRings : public testing::Test {
 protected:
  HostileRings() {
    own_ = engines_.form("pair");
    const std::vector<PeerAddress> made = engines_.make_addresses();
    addresses_ = made;
    addresses_.push_back(member_.address());
    for (int rank = 0; rank < 2; ++rank) group_.push_back(engines_.form("group", rank, addresses_));
    member_.offer(addresses_[0], ring_);
    testing::internal::CaptureStderr();
  }
  ~HostileRings() override { testing::internal::GetCapturedStderr(); }

  static std::vector<std::unique_ptr<transport::Transport>> transports(transport::LoopbackFabric& fabric) {
    std::vector<std::unique_ptr<transport::Transport>> made;
    for (int i = 0; i < 2; ++i) made.push_back(with_rings(fabric.make_transport()));
    return made;
  }

  // Returns the message that the third rank would send to the first one next.
  Written message(const Integers& values) {
    auto like = TestOperation::receive(values.size(), static_cast<int>(kMember), kTag);
    const auto bytes = std::as_bytes(std::span(values));
    const transport::OperationHeader header{.key = addresses_[0].key,
                                            .fingerprint = like->fingerprint(0),
                                            .source = kMember,
                                            .sequence = num_sent_,
                                            .slot = kTag};
    Written made{.header = header, .payload = {bytes.begin(), bytes.end()}};
    like->released.store(true);  // the operation is never started
    return made;
  }
  void write(const Written& message) {
    const sync::Clock::time_point deadline = sync::Clock::now() + 10s;
    while (ring_.writer.write(transport::RingHead::Kind::kMessage, message.header, message.bytes()) ==
           transport::RingWriter::Outcome::kFull) {
      ASSERT_LT(sync::Clock::now(), deadline);
      member_.wake(addresses_[0]);
      std::this_thread::yield();
    }
    member_.wake(addresses_[0]);
  }
  std::unique_ptr<TestOperation> receive(size_t num_elements) {
    auto operation = TestOperation::receive(num_elements, static_cast<int>(kMember), kTag);
    run(*group_[0], *operation);
    return operation;
  }
  void expect_arrives(const Integers& values) {
    write(message(values));
    ++num_sent_;
    const auto operation = receive(values.size());
    ASSERT_TRUE(operation->status().ok()) << operation->status().message();
    EXPECT_EQ(operation->data, values);
  }
  void expect_refused(uint64_t count) {
    const sync::Clock::time_point deadline = sync::Clock::now() + 10s;
    while (engines_[0].num_refused() < count && sync::Clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(engines_[0].num_refused(), count);
  }
  // Sends in both directions, in a group of the two engines and in the group of three.
  void expect_others_undisturbed() {
    for (int round = 0; round < 3; ++round) {
      on_all_ranks(2, [&](int rank) {
        auto reduced = TestOperation::all_reduce({rank, 1}, 30s);
        ASSERT_TRUE(run(*own_[static_cast<size_t>(rank)], *reduced).ok()) << reduced->status().message();
        EXPECT_EQ(reduced->data, (Integers{1, 2}));
        auto moved = rank == 0 ? TestOperation::receive(1, 1, 5) : TestOperation::send({9}, 0, 5);
        ASSERT_TRUE(run(*group_[static_cast<size_t>(rank)], *moved).ok()) << moved->status().message();
        EXPECT_EQ(moved->data, Integers{9});
      });
    }
  }
  // Writes bytes that break the ring where its next message would be.
  void expect_lost_by(transport::RingHead head, uint32_t entry, uint64_t num_refused_before) {
    auto waiting = TestOperation::receive(4, static_cast<int>(kMember), kTag);
    group_[0]->start(*waiting);
    head.entry = entry;
    ring_.memory.entries[entry % transport::RingMemory::kNumEntries].head.store(head);
    member_.wake(addresses_[0]);
    ASSERT_TRUE(group_[0]->wait(*waiting, sync::Clock::now() + 10s));
    EXPECT_EQ(waiting->status().code(), ErrorCode::kPeerLost);
    EXPECT_NE(waiting->status().message().find("rank 2 is gone: it has written invalid data into shared memory"),
              std::string::npos)
        << waiting->status().message();
    EXPECT_EQ(waiting->data, Integers(4));
    await_release(*waiting);
    expect_refused(num_refused_before + 1);
    expect_others_undisturbed();
  }

  transport::LoopbackFabric fabric_{{.mailbox_capacity = 8192, .kills = {}}};
  Engines engines_{transports(fabric_)};
  Process member_{fabric_};
  SharedRing ring_;
  std::vector<PeerAddress> addresses_;
  std::vector<std::unique_ptr<Communicator>> own_;
  std::vector<std::unique_ptr<Communicator>> group_;
  uint32_t num_sent_ = 0;
};

TEST_F(HostileRings, foreign_bytes_between_genuine_messages_are_refused) {
  expect_arrives({1, 2, 3});
  const Written genuine = message({4, 5, 6});
  std::vector<transport::OperationHeader> headers(6, genuine.header.as<transport::OperationHeader>());
  headers[0].key = addresses_[1].key;
  headers[1].key = 0;
  headers[2].source = 3;
  headers[3].source = UINT32_MAX;
  headers[4].destination = 1;
  headers[5].fingerprint.operation = static_cast<transport::OperationKind>(200);
  std::vector<Written> foreign;
  for (const transport::OperationHeader& header : headers) foreign.push_back({header, genuine.payload});
  for (const Written& each : foreign) write(each);
  expect_refused(foreign.size());
  expect_arrives({4, 5, 6});
  expect_others_undisturbed();
}

TEST_F(HostileRings, noise_in_the_place_of_headers_is_refused) {
  static constexpr uint32_t kMany = 500;  // several laps of the ring
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (uint32_t i = 0; i < kMany; ++i) {
    std::array<uint64_t, sizeof(transport::MessageHeader) / 8> noise;
    for (uint64_t& word : noise) word = random();
    const size_t num_bytes = random() % (transport::RingMemory::kMostBytes + 1);
    write(
        {.header = std::bit_cast<transport::MessageHeader>(noise), .payload = std::vector(num_bytes, std::byte{0xA5})});
  }
  expect_refused(kMany);
  expect_arrives({1});
  expect_others_undisturbed();
}

TEST_F(HostileRings, messages_of_its_own_once_more_are_refused) {
  const Written first = message({1, 2});
  expect_arrives({1, 2});
  write(first);
  expect_refused(1);
  expect_arrives({3, 4});
  write(first);
  expect_refused(2);
  expect_arrives({5, 6});
}

// Messages read from the ring between two engines, and replayed by a process that has captured them.
TEST_F(HostileRings, replayed_messages_of_other_ranks_are_refused) {
  const auto is_for_first = [&](const Written& each) { return each.header.key == addresses_[0].key; };
  for (int round = 0; round < 5; ++round) expect_others_undisturbed();
  std::vector<Written> captured;
  for (const transport::RingMemory* ring : mapped_rings()) {
    if (auto messages = messages_in(*ring); std::ranges::any_of(messages, is_for_first)) captured = std::move(messages);
  }
  ASSERT_GE(captured.size(), 20U);
  ASSERT_TRUE(std::ranges::any_of(captured, [](const Written& each) {
    return each.header.kind == static_cast<transport::MessageKind>(transport::OperationKind::kAllReduce);
  }));
  for (const Written& each : captured) write(each);
  expect_refused(captured.size());
  expect_others_undisturbed();
  expect_arrives({1});
}

TEST_F(HostileRings, payloads_of_another_length_fail_their_receive_alone) {
  for (const size_t length : {size_t{0}, size_t{12}, size_t{15}, size_t{20}, transport::RingMemory::kMostBytes}) {
    Written wrong = message({1, 2, 3, 4});
    wrong.payload.resize(length, std::byte{0xFF});
    write(wrong);
    ++num_sent_;
    const auto operation = receive(4);
    EXPECT_EQ(operation->status().code(), ErrorCode::kMismatch) << length << " bytes";
    EXPECT_EQ(operation->data, Integers(4)) << length << " bytes";
  }
  expect_arrives({1, 2, 3, 4});
  expect_others_undisturbed();
}

TEST_F(HostileRings, heads_of_no_known_kind_lose_their_writer) {
  expect_arrives({1});
  expect_lost_by({.kind = static_cast<transport::RingHead::Kind>(9)}, transport::RingMemory::entries_of(4), 0);
}

TEST_F(HostileRings, heads_of_more_bytes_than_a_message_may_have_lose_their_writer) {
  expect_lost_by({.kind = transport::RingHead::Kind::kMessage, .num_bytes = transport::RingMemory::kMostBytes + 1}, 0,
                 0);
}

TEST_F(HostileRings, heads_that_lead_out_of_the_ring_lose_their_writer) {
  static constexpr uint32_t kLast = transport::RingMemory::kNumEntries - 1;
  Written foreign = message({});
  foreign.header.key = 0;
  for (uint32_t entry = 0; entry < kLast; ++entry) write(foreign);
  expect_refused(kLast);
  expect_lost_by({.kind = transport::RingHead::Kind::kMessage, .num_bytes = 17}, kLast, kLast);
}

TEST_F(HostileRings, heads_of_other_lines_are_none) {
  for (const uint32_t entry : {1u, transport::RingMemory::kNumEntries, UINT32_MAX}) {
    ring_.memory.entries[0].head.store(
        {.kind = transport::RingHead::Kind::kMessage, .num_bytes = 0xFFFFFF, .entry = entry});
    member_.wake(addresses_[0]);
    expect_others_undisturbed();
  }
  expect_arrives({1});
  expect_refused(0);
}

TEST_F(HostileRings, offers_that_are_not_theirs_are_counted) {
  SharedRing another;
  const int descriptor = another.writer.descriptor();
  using Kind = transport::RingCall::Kind;
  member_.call(addresses_[0], Kind::kRing, descriptor, 1);  // addressed to another process
  expect_refused(1);
  member_.call(addresses_[0], Kind::kRing, descriptor, 0, 0);  // from a process without a key
  expect_refused(2);
  member_.call(addresses_[0], Kind::kRing, descriptor);  // the same ring again
  expect_refused(3);
  EXPECT_FALSE(another.writer.is_read());
  expect_arrives({1});
  expect_others_undisturbed();
}

// A child process that is killed at the end of its test, even if the test fails.
struct Child {
  const pid_t pid = fork();

  ~Child() {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
};

// A separate process changes the ring all the time. Values are those before or after a change; lengths and ranks stay.
TEST_F(HostileRings, payloads_that_change_while_they_are_read_stay_within_their_receive) {
  static constexpr size_t kNumElements = 200;
  static constexpr int32_t kWritten = 0x11111111;
  const pid_t parent = getpid();
  const Child child;
  ASSERT_GE(child.pid, 0);
  if (child.pid == 0) {  // only stores to the ring's entries, except to those that begin with a head and header
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const uint32_t num_entries = transport::RingMemory::entries_of(kNumElements * 4);
    while (getppid() == parent) {
      for (uint32_t entry = 0; entry < transport::RingMemory::kNumEntries; ++entry) {
        if (entry % num_entries == 0 || entry / num_entries == transport::RingMemory::kNumEntries / num_entries)
          continue;
        std::memset(static_cast<void*>(&ring_.memory.entries[entry]), 0x22, transport::kEntryBytes);
      }
    }
    _exit(0);
  }
  size_t num_changed = 0;
  const sync::Clock::time_point deadline = sync::Clock::now() + 20s;
  for (int round = 0; round < 500 || (num_changed == 0 && sync::Clock::now() < deadline); ++round) {
    write(message(Integers(kNumElements, kWritten)));
    ++num_sent_;
    const auto operation = receive(kNumElements);
    ASSERT_TRUE(operation->status().ok()) << operation->status().message();
    for (const int32_t value : operation->data) {
      const auto bytes = std::bit_cast<std::array<uint8_t, 4>>(value);
      ASSERT_TRUE(std::ranges::all_of(bytes, [](uint8_t byte) { return byte == 0x11 || byte == 0x22; })) << value;
      num_changed += value != kWritten ? 1 : 0;
    }
  }
  EXPECT_NE(num_changed, 0U) << "no message was changed while it was read";
  expect_refused(0);
  expect_others_undisturbed();
}

}  // namespace
}  // namespace axon::engine
