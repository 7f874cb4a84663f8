// Tests processes that are killed while they write to this one. Through rings they leave no partial message. One of
// them sooner or later wedges UCX's queue, which is used where rings are off. Operations then end by their timeouts.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/host_id.hpp"
#include "base/scoped_variable.hpp"
#include "engine/engines.hpp"
#include "engine/instance.hpp"
#include "engine/network.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

constexpr const char* kVictim = "KILLED_WRITERS_VICTIM";  // in a writer's environment: the address to which it writes
constexpr int kMostWriters = 300;                         // in trials, one writer in 2 to 117 wedged the queue

std::string to_text(std::span<const uint8_t> bytes) {
  std::string text;
  for (const unsigned byte : bytes) {
    for (const unsigned digit : {byte >> 4, byte & 15}) text += "0123456789abcdef"[digit];
  }
  return text;
}

std::vector<uint8_t> from_text(std::string_view text) {
  std::vector<uint8_t> bytes(text.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, bytes[i], 16);
  }
  return bytes;
}

struct Pending : transport::Completion {
  int count = 0;

  Pending() noexcept {
    done = [](transport::Completion& self, Status) noexcept { --static_cast<Pending&>(self).count; };
  }
};

// Sends messages that belong to no group, one after the other, until it is killed.
TEST(Writer, DISABLED_writes_until_it_is_killed) {
  const char* text = std::getenv(kVictim);
  ASSERT_NE(text, nullptr);
  const std::vector<uint8_t> blob = from_text(text);
  const PeerAddress victim = PeerAddress::decode(blob).value();
  Engine& engine = instance();
  const transport::PeerId peer = engine.exclusively([&] { return engine.meet(victim).value(); });
  const std::vector<std::byte> payload(2048);
  transport::MessageHeader header;
  header.key = 1;
  Pending pending;
  const auto write = [&] {
    transport::Transport& transport = engine.messenger().transport();
    if (pending.count <= 4 && !transport.send(peer, header, {payload.data(), payload.size()}, pending)) ++pending.count;
    transport.progress();
  };
  for (const auto until = sync::Clock::now() + 20s; sync::Clock::now() < until;) engine.exclusively(write);
}

class Writer {
 public:
  explicit Writer(Engine& engine) {
    const std::string victim = to_text(engine.peers().own_address().encode());
    pid_ = fork();
    if (pid_ == 0) {
      setenv(kVictim, victim.c_str(), 1);
      execl("/proc/self/exe", "writer", "--gtest_filter=Writer.*", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
            nullptr);
      _exit(1);
    }
    PeerAddress peer_address = engine.peers().own_address();
    peer_address.process = {static_cast<uint64_t>(pid_), 1};
    peer_address.pid = pid_;
    // Lights the beacon under the writer's identity: its own engine has another one.
    beacon_.emplace(HostBeacon::light(peer_address.process).value());
    EXPECT_TRUE(engine.exclusively([&] { return engine.meet(peer_address).ok(); }));
  }
  ~Writer() { end(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void end() {
    if (std::exchange(has_ended_, true)) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
  std::optional<HostBeacon> beacon_;
  bool has_ended_ = false;
};

// Drives the engine like a waiter whose operation does not finish.
void drive(Engine& engine, std::chrono::microseconds how_long) {
  static const sync::atomic<bool> never{false};
  engine.wait(never, sync::Clock::now() + how_long);
}

// Starts a process that writes to the engine, and kills it meanwhile. Returns whether the engine received its messages.
bool receives_from_one_that_is_killed(Engine& engine) {
  const auto num_there = [&] { return engine.exclusively([&] { return engine.peers().num_neighbours(); }); };
  const uint64_t num_before = engine.num_refused();
  const auto has_received = [&] { return engine.num_refused() >= num_before + 1000; };
  Writer writer(engine);
  const auto deadline = sync::Clock::now() + 20s;
  while (!has_received() && sync::Clock::now() < deadline) drive(engine, 200us);
  const bool received = has_received();
  writer.end();
  const auto ends_by = sync::Clock::now() + 20s;
  while (num_there() != 0 && sync::Clock::now() < ends_by) drive(engine, 200us);
  EXPECT_EQ(num_there(), 0);
  return received;
}

TEST(KilledWritersTest, leave_no_queue_wedged_of_an_engine_that_takes_rings) {
  Engine engine(open_network().value(), this_host(), collectives::AlgorithmOverrides());
  for (int num_killed = 0; num_killed <= 40; ++num_killed) ASSERT_TRUE(receives_from_one_that_is_killed(engine));
}

using Group = std::vector<std::unique_ptr<Communicator>>;

Group form_of(const std::vector<Engine*>& engines, const std::string& name) {
  std::vector<std::unique_ptr<const OwnAddress>> own;
  std::vector<PeerAddress> addresses;
  for (Engine* engine : engines) {
    own.emplace_back(new OwnAddress(engine->make_address()));
    addresses.push_back(own.back()->address());
  }
  Group group;
  for (Engine* engine : engines) {
    const int rank = static_cast<int>(group.size());
    group.push_back(engine->form({.name = name, .rank = rank, .addresses = addresses}).value());
  }
  return group;
}

// Starts operations of 1 s, one per rank, and expects that they end in time: on rank 0 by their timeout. What rank 0
// sends may arrive, or wait for an answer to UCX that rank 0 would have to receive.
void expect_ends(const Group& group, const std::vector<TestOperation*>& operations) {
  for (size_t rank = 0; rank < group.size(); ++rank) group[rank]->start(*operations[rank]);
  const auto deadline = sync::Clock::now() + 10s;
  for (size_t rank = 0; rank < group.size(); ++rank) ASSERT_TRUE(group[rank]->wait(*operations[rank], deadline));
  EXPECT_EQ(operations[0]->status().code(), ErrorCode::kTimeout) << operations[0]->status().message();
}

TEST(KilledWritersTest, leave_operations_that_end_by_their_timeouts_where_rings_are_off) {
  std::vector<std::unique_ptr<TestOperation>> kept;  // longer than the engines, which may use their memory to the end
  const auto keep = [&](std::unique_ptr<TestOperation> operation) {
    operation->timeout = 1s;
    return kept.emplace_back(std::move(operation)).get();
  };
  const ScopedVariable without_rings("AXON_TRANSPORTS", "ucx");
  Engine wedged(open_network().value(), this_host(), collectives::AlgorithmOverrides());
  Engine other(open_network().value(), this_host(), collectives::AlgorithmOverrides());
  const Group group = form_of({&wedged, &other}, "before");
  on_all_ranks(2, [&](int rank) {
    const auto sum = TestOperation::all_reduce({1}, 30s);
    EXPECT_TRUE(run(*group[static_cast<size_t>(rank)], *sum).ok()) << sum->status().message();
  });
  for (int num_killed = 1; receives_from_one_that_is_killed(wedged); ++num_killed) {
    if (num_killed == kMostWriters)
      GTEST_SKIP() << kMostWriters << " writers, and none was killed while it wrote a message";
  }
  const std::vector<int32_t> large(1 << 20);
  expect_ends(group, {keep(TestOperation::send(large, 1, 0)), keep(TestOperation::receive(large.size(), 0, 0))});
  expect_ends(group, {keep(TestOperation::all_reduce({1}, 1s)), keep(TestOperation::all_reduce({1}, 1s))});
  const Group later = form_of({&wedged, &other}, "after");
  expect_ends(later, {keep(TestOperation::all_reduce({1}, 1s)), keep(TestOperation::all_reduce({1}, 1s))});
  wedged.shut_down();
  other.shut_down();
}

}  // namespace
}  // namespace axon::engine
