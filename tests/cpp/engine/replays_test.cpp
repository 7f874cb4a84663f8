// Tests calls that CUDA graphs hold: what launches trigger runs again and again, and matches whatever the order of
// launches on each rank.
#include "engine/replays.hpp"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <string>
#include <thread>

#include "comes_true.hpp"
#include "engine/test_device.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

// Stands in for a device's kernels.
class TestRing {
 public:
  explicit TestRing(Engine& engine) { watch(engine); }

  void watch(Engine& engine) {
    engine.exclusively([&] { engine.replays().watch({entries_, num_taken_}); });
  }

  void trigger(uint32_t id) {
    while (num_written_ - num_taken_.load() >= entries_.size()) std::this_thread::yield();
    entries_[num_written_++ % entries_.size()].store(id, std::memory_order_release);
  }

 private:
  std::array<std::atomic<uint32_t>, 4> entries_{};
  std::atomic<uint32_t> num_taken_{0};
  uint32_t num_written_ = 0;
};

// A graph of one call.
struct Graph {
  std::shared_ptr<TestOperation> operation;
  std::shared_ptr<TestDevice> device;
  uint32_t trigger_id = 0;
  std::shared_ptr<void> held;
  std::shared_ptr<std::string> failure = std::make_shared<std::string>();

  std::vector<int32_t>& data() const { return operation->data; }
};

class ReplaysTest : public testing::Test {
 protected:
  static constexpr int kRanks = 3;

  void SetUp() override {
    for (size_t rank = 0; rank < kRanks; ++rank) rings_[rank] = std::make_unique<TestRing>(engines_[rank]);
  }

  Graph capture(int rank, std::unique_ptr<TestOperation> operation, size_t num_segments = 1) {
    Graph graph;
    graph.operation = std::move(operation);
    graph.operation->released.store(true);  // it is never started
    graph.device = std::make_shared<TestDevice>(*graph.operation, num_segments);
    graph.operation->device_segments = nullptr;
    graph.trigger_id = ++latest_id_;
    const auto note = [failure = graph.failure](const Status& status) { *failure = status.message(); };
    auto captured = communicator(rank).capture(*graph.operation, graph.trigger_id, graph.device, note);
    EXPECT_TRUE(captured.ok());
    graph.held = std::move(captured).value();
    return graph;
  }
  Graph capture_all_reduce(int rank, std::vector<int32_t> values, size_t num_segments = 1) {
    return capture(rank, TestOperation::all_reduce(std::move(values), 10s), num_segments);
  }

  void trigger(int rank, const Graph& graph) { rings_[static_cast<size_t>(rank)]->trigger(graph.trigger_id); }
  // What a stream does with a graph, and its host node.
  void launch(int rank, const Graph& graph) {
    engines_[static_cast<size_t>(rank)].replays().wake();
    trigger(rank, graph);
    graph.device->run();
  }
  Communicator& communicator(int rank) { return *group_[static_cast<size_t>(rank)]; }

  uint32_t latest_id_ = 0;
  std::array<std::unique_ptr<TestRing>, kRanks> rings_;  // the engines read them until they end
  transport::LoopbackFabric fabric_;
  Engines engines_{loopback_transports(fabric_, kRanks)};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("of graphs");
};

std::vector<int32_t> numbers(size_t count, int32_t first) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST_F(ReplaysTest, every_launch_reduces_what_the_tensors_hold_then) {
  for (const size_t num_segments : {1, 3, 7}) {
    std::vector<Graph> graphs;
    for (int rank = 0; rank < kRanks; ++rank) {
      graphs.push_back(capture_all_reduce(rank, std::vector<int32_t>(100), num_segments));
    }
    for (int32_t round = 0; round < 300; ++round) {
      on_all_ranks(kRanks, [&](int rank) {
        graphs[static_cast<size_t>(rank)].data() = numbers(100, round * rank);
        launch(rank, graphs[static_cast<size_t>(rank)]);
        if (round % 50 != 0) return;
        const auto beside = TestOperation::all_reduce({rank, round}, 10s);
        EXPECT_TRUE(run(communicator(rank), *beside).ok());
        EXPECT_EQ(beside->data, (std::vector<int32_t>{3, 3 * round}));
      });
      for (const Graph& graph : graphs) {
        for (int32_t i = 0; i < 100; ++i) ASSERT_EQ(graph.data()[static_cast<size_t>(i)], 3 * (round + i));
      }
    }
    for (const Graph& graph : graphs) EXPECT_EQ(*graph.failure, "");
  }
}

TEST_F(ReplaysTest, ranks_may_launch_graphs_in_different_orders) {
  std::vector<std::array<Graph, kRanks>> graphs(3);
  for (auto& of_ranks : graphs) {
    for (int rank = 0; rank < kRanks; ++rank) of_ranks[static_cast<size_t>(rank)] = capture_all_reduce(rank, {0});
  }
  for (int32_t round = 0; round < 100; ++round) {
    on_all_ranks(kRanks, [&](int rank) {
      std::vector<std::thread> streams;
      for (size_t turn = 0; turn < graphs.size(); ++turn) {
        const auto index = (turn + static_cast<size_t>(rank)) % graphs.size();
        const Graph& graph = graphs[index][static_cast<size_t>(rank)];
        graph.data()[0] = round + static_cast<int32_t>(100 * index);
        trigger(rank, graph);
        streams.emplace_back([&graph] { graph.device->run(); });
      }
      for (std::thread& stream : streams) stream.join();
    });
    for (size_t index = 0; index < graphs.size(); ++index) {
      for (const Graph& graph : graphs[index]) {
        ASSERT_EQ(graph.data()[0], 3 * (round + static_cast<int32_t>(100 * index)));
      }
    }
  }
}

constexpr size_t kLong = 5 * SegmentedExchange::segment_bytes(0) / 2 / sizeof(int32_t) + 3;

// The ranks capture and launch messages of two tags in different orders. Messages beside the graphs have the same tags.
TEST_F(ReplaysTest, messages_match_by_tag_and_by_order_of_capture) {
  for (const size_t length : {size_t{1}, kLong}) {
    std::vector<Graph> sends;
    std::vector<Graph> receives;
    for (const uint32_t tag : {5U, 5U, 6U})
      sends.push_back(capture(1, TestOperation::send(numbers(length, 0), 0, tag)));
    for (const uint32_t tag : {6U, 5U, 5U}) receives.push_back(capture(0, TestOperation::receive(length, 1, tag)));
    const auto eager_send = TestOperation::send({77}, 0, 5);
    const auto eager_receive = TestOperation::receive(1, 1, 5);
    communicator(0).start(*eager_receive);
    for (int32_t round = 0; round < 3; ++round) {
      std::vector<std::thread> streams;
      for (size_t i : {1, 0, 2}) {
        sends[i].data() = numbers(length, round + 1000 * static_cast<int32_t>(i));
        trigger(1, sends[i]);
        streams.emplace_back([&, i] { sends[i].device->fill_all(); });
      }
      for (size_t i : {2, 0, 1}) {
        trigger(0, receives[i]);
        streams.emplace_back([&, i] { receives[i].device->run(); });
      }
      for (std::thread& stream : streams) stream.join();
      EXPECT_EQ(receives[0].data(), numbers(length, round + 2000));
      EXPECT_EQ(receives[1].data(), numbers(length, round));
      EXPECT_EQ(receives[2].data(), numbers(length, round + 1000));
    }
    communicator(1).start(*eager_send);
    EXPECT_TRUE(communicator(0).wait(*eager_receive, sync::Clock::now() + 20s));
    EXPECT_EQ(eager_receive->data[0], 77);
    EXPECT_TRUE(communicator(1).wait(*eager_send, sync::Clock::now() + 20s));
    await_release(*eager_send);
    await_release(*eager_receive);
  }
}

TEST_F(ReplaysTest, a_sender_may_be_launches_ahead_of_its_receiver) {
  const Graph send = capture(1, TestOperation::send({0}, 0, 5));
  const Graph receive = capture(0, TestOperation::receive(1, 1, 5));
  for (int32_t round = 0; round < 100; ++round) {
    send.data()[0] = round;
    trigger(1, send);
    send.device->fill_all();
  }
  for (int32_t round = 0; round < 100; ++round) {
    launch(0, receive);
    EXPECT_EQ(receive.data()[0], round);
  }
}

TEST_F(ReplaysTest, a_graph_that_is_gone_ends_after_its_last_launch) {
  Graph send = capture(1, TestOperation::send({7}, 0, 5));
  const Graph receive = capture(0, TestOperation::receive(1, 1, 5));
  const std::weak_ptr<TestDevice> device = send.device;
  const std::shared_ptr<TestOperation> operation = send.operation;
  trigger(1, send);
  send.device->fill_all();
  send = Graph();
  launch(0, receive);
  EXPECT_EQ(receive.data()[0], 7);
  while (!device.expired()) std::this_thread::yield();
}

// The end of a graph reads the ring, too. The engine then waits for the entry after those.
TEST_F(ReplaysTest, triggers_that_follow_the_end_of_another_graph_are_found) {
  std::vector<Graph> graphs;
  for (int rank = 0; rank < kRanks; ++rank) {
    graphs.push_back(capture(rank, TestOperation::all_reduce({1}, 3s)));
  }
  for (int round = 0; round < 3; ++round) {
    const Graph unused = capture_all_reduce(0, {1});
    engines_[0].exclusively([&] {
      trigger(0, unused);  // its device does nothing, so the replay only waits
      engines_[0].replays().read();
      engines_[0].replays().forget(*static_cast<CapturedCall*>(unused.held.get()));
    });
    on_all_ranks(kRanks, [&](int rank) {
      graphs[static_cast<size_t>(rank)].data()[0] = 1;
      launch(rank, graphs[static_cast<size_t>(rank)]);
    });
    for (const Graph& graph : graphs) ASSERT_EQ(graph.data()[0], 3) << *graph.failure;
  }
}

TEST_F(ReplaysTest, different_captured_calls_are_a_mismatch) {
  const Graph graphs[] = {capture_all_reduce(0, {1, 2}), capture(1, TestOperation::broadcast({1, 2}, 0, 10s)),
                          capture_all_reduce(2, {1, 2})};
  on_all_ranks(kRanks, [&](int rank) { launch(rank, graphs[rank]); });
  std::string all;
  for (int rank = 0; rank < kRanks; ++rank) {
    (void)communicator(rank).failure();
    EXPECT_TRUE(graphs[rank].device->has_failed());
    all += communicator(rank).failure().message();
  }
  EXPECT_NE(all.find("mismatched collectives at #1 of CUDA graphs"), std::string::npos) << all;
  EXPECT_NE(all.find("captured as #1, launch #1"), std::string::npos) << all;
}

TEST_F(ReplaysTest, a_rank_that_launches_nothing_is_named_at_the_timeout) {
  auto operation = TestOperation::all_reduce({1}, 100ms);
  operation->call_site = "train.py:7, in step";
  const Graph graph = capture(0, std::move(operation));
  capture_all_reduce(1, {1});
  launch(0, graph);
  EXPECT_TRUE(graph.device->has_failed());
  const Status failure = communicator(0).failure();
  EXPECT_EQ(failure.code(), ErrorCode::kTimeout);
  for (const char* part : {"captured as #1 at train.py:7, in step, launch #1", "Still awaited here: rank "}) {
    EXPECT_NE(failure.message().find(part), std::string::npos) << failure.message();
  }
  EXPECT_NE(graph.failure->find("train.py:7"), std::string::npos) << *graph.failure;
}

TEST_F(ReplaysTest, launches_after_the_end_of_the_group_end_at_once) {
  const Graph graph = capture_all_reduce(0, {1});
  const Graph later = capture_all_reduce(0, {1});
  group_[0]->abort("enough");
  launch(0, graph);
  EXPECT_TRUE(graph.device->has_failed());
  EXPECT_NE(graph.failure->find("enough"), std::string::npos) << *graph.failure;
  for (int i = 0; i < 10; ++i) launch(0, graph);
  group_[0].reset();
  launch(0, later);
  EXPECT_TRUE(later.device->has_failed());
}

TEST_F(ReplaysTest, launches_after_the_end_of_the_engine_end_at_once) {
  const Graph graph = capture_all_reduce(0, {1});
  engines_[0].shut_down();
  EXPECT_TRUE(graph.device->has_failed());
  graph.device->run();
}

TEST_F(ReplaysTest, a_sleeping_engine_is_woken) {
  std::vector<Graph> graphs;
  for (int rank = 0; rank < kRanks; ++rank) graphs.push_back(capture_all_reduce(rank, {rank}));
  for (int round = 0; round < 2; ++round) {
    std::this_thread::sleep_for(200ms);
    on_all_ranks(kRanks, [&](int rank) { launch(rank, graphs[static_cast<size_t>(rank)]); });
    for (const Graph& graph : graphs) EXPECT_EQ(graph.data()[0], round == 0 ? 3 : 9);
  }
}

// No node of the graph wakes the engine, which finds the trigger when it is awake for another reason.
TEST_F(ReplaysTest, a_trigger_without_a_wake_up_is_found) {
  const Graph graphs[] = {capture_all_reduce(0, {1}), capture_all_reduce(1, {1}), capture_all_reduce(2, {1})};
  on_all_ranks(kRanks, [&](int rank) {
    trigger(rank, graphs[rank]);
    graphs[rank].device->run();
    EXPECT_EQ(graphs[rank].data()[0], 3);
  });
}

// The numbers of replays wrap to those of eager collectives. Here messages of a replay wait at rank 0 while it enters
// and leaves an eager collective of the same number.
TEST_F(ReplaysTest, replays_and_eager_collectives_of_one_number_are_told_apart) {
  static constexpr Replay kReplay{.call = 1, .launch = uint32_t{1} << (32 - Replay::kBitsOfCall)};
  static_assert(kReplay.sequence() == 1);
  std::vector<std::unique_ptr<TestOperation>> replays;
  std::vector<std::unique_ptr<TestDevice>> devices;
  for (int rank = 0; rank < kRanks; ++rank) {
    replays.push_back(TestOperation::all_reduce({rank}, 20s));
    replays.back()->replay = kReplay;
    devices.push_back(std::make_unique<TestDevice>(*replays.back(), 1));
  }
  for (const int rank : {1, 2}) {
    communicator(rank).start(*replays[static_cast<size_t>(rank)]);
    devices[static_cast<size_t>(rank)]->fill(0);
  }
  std::this_thread::sleep_for(20ms);
  on_all_ranks(kRanks, [&](int rank) {
    const auto eager = TestOperation::broadcast({rank}, 0, 20s);
    EXPECT_TRUE(run(communicator(rank), *eager).ok()) << eager->status().message();
    EXPECT_EQ(eager->sequence(), 1U);
  });
  communicator(0).start(*replays[0]);
  devices[0]->fill(0);
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_TRUE(communicator(rank).wait(*replays[static_cast<size_t>(rank)], sync::Clock::now() + 20s));
    EXPECT_TRUE(devices[static_cast<size_t>(rank)]->take(0));
    EXPECT_EQ(replays[static_cast<size_t>(rank)]->data[0], 3);
    await_release(*replays[static_cast<size_t>(rank)]);
  }
}

TEST_F(ReplaysTest, a_call_that_is_captured_after_the_end_of_the_engine_fails) {
  engines_[0].shut_down();
  const Graph graph = capture_all_reduce(0, {1});
  EXPECT_TRUE(graph.device->has_failed());
}

// A new engine reads the ring from where the former one has stopped.
TEST_F(ReplaysTest, another_engine_goes_on_with_the_ring) {
  const Graph graph = capture_all_reduce(0, {1});
  engines_[0].shut_down();
  for (int i = 0; i < 3; ++i) trigger(0, graph);  // of a graph that outlives its engine
  rings_[0]->watch(engines_[1]);
  const Graph graphs[] = {capture_all_reduce(1, {1}), capture_all_reduce(2, {1})};
  rings_[0]->trigger(graphs[0].trigger_id);
  EXPECT_TRUE(!graphs[0].device->has_failed());
  group_[1]->abort("enough");
  graphs[0].device->run();
  EXPECT_TRUE(graphs[0].device->has_failed()) << "the trigger was not read";
}

// Takes the part of a condition that a device sets.
class TestSource final : public Replays::Source {
 public:
  bool take() noexcept override { return false; }
  Next next() const noexcept override {
    ++num_waits;
    return {.flag = never_set_};
  }
  void on_shut_down() noexcept override { has_ended = true; }

  mutable std::atomic<int> num_waits{0};
  std::atomic<bool> has_ended{false};

 private:
  std::atomic<uint32_t> never_set_{0};
};

TEST_F(ReplaysTest, sources_are_polled_from_a_launch_on_and_told_of_the_end) {
  Engine& engine = engines_[0];
  TestSource source;
  engine.exclusively([&] { engine.replays().watch(source); });
  engine.exclusively([&] { engine.replays().read(); });
  EXPECT_EQ(source.num_waits.load(), 0);
  engine.replays().wake();
  EXPECT_TRUE(comes_true([&] { return source.num_waits.load() == 1; }));
  EXPECT_FALSE(source.has_ended.load());
  engine.shut_down();
  EXPECT_TRUE(source.has_ended.load());
  engine.exclusively([&] { engine.replays().unwatch(source); });
}

}  // namespace
}  // namespace axon::engine
