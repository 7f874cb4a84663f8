// One message to many peers.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "axon/connected_pair.hpp"
#include "comes_true.hpp"

namespace axon::library {
namespace {

class Publishing : public testing::Test {
 protected:
  static constexpr int kNumWorkers = 3;

  Publishing() {
    for (int i = 0; i < kNumWorkers; ++i) {
      Runtime& worker = workers_.emplace_back(ConnectedPair::opened(("worker" + std::to_string(i)).c_str()));
      EXPECT_TRUE(worker.add("update", [this](Invocation& invocation) { take(invocation); }).ok());
      peers_.push_back(publisher_.connect(worker.address().value(), 10s).value());
    }
  }

  void take(Invocation& invocation) {
    EXPECT_FALSE(invocation.wants_answer());
    rpc::ValueReader values = invocation.arguments().values();
    const auto first = static_cast<float>(values.next().integer);
    const Tensor tensor = invocation.arguments().tensor(values.next().count);
    EXPECT_EQ(tensor.as<float>().front(), first);
    EXPECT_EQ(tensor.as<float>().back(), first);
    num_elements_.fetch_add(tensor.as<float>().size());
    invocation.reply();
  }

  static void write(Publication& news, const std::shared_ptr<std::vector<float>>& weights) {
    Message message = news.message();
    message.integer(static_cast<int64_t>(weights->front()));
    message.tensor(std::span<const float>(*weights), Owner::of(weights));
  }

  void expect_arrived(size_t num_elements) {
    while (num_elements_.load() < num_elements) std::this_thread::yield();
    EXPECT_EQ(num_elements_.exchange(0), num_elements);
  }

  std::atomic<size_t> num_elements_{0};
  Runtime publisher_ = ConnectedPair::opened("publisher");
  std::vector<Runtime> workers_;
  std::vector<Peer> peers_;
};

TEST_F(Publishing, all_peers_get_what_is_written_once) {
  Publication news("update");
  for (const size_t size : {1, 1000, 100'000}) {  // in the header frame, and in payload frames
    for (int turn = 1; turn <= 3; ++turn) {
      const auto weights = std::make_shared<std::vector<float>>(size, static_cast<float>(turn));
      write(news, weights);
      news.tell(peers_);
      ASSERT_TRUE(news.wait(10s));
      EXPECT_TRUE(news.finished());
      for (size_t i = 0; i < peers_.size(); ++i) EXPECT_TRUE(news.status(i).ok()) << news.status(i).message();
      while (!news.released()) std::this_thread::yield();
      EXPECT_EQ(weights.use_count(), 1);
      expect_arrived(kNumWorkers * size);
      news.open("update");
    }
  }
}

TEST_F(Publishing, a_peer_that_is_gone_holds_up_no_other) {
  workers_[1].close();
  while (peers_[1].failure().ok()) std::this_thread::yield();
  const auto weights = std::make_shared<std::vector<float>>(100'000, 1.0F);
  Publication news("update");
  write(news, weights);
  news.tell(peers_);
  ASSERT_TRUE(news.wait(10s));
  EXPECT_TRUE(news.status(0).ok());
  EXPECT_EQ(news.status(1).code(), ErrorCode::kPeerLost);
  EXPECT_TRUE(news.status(2).ok());
  expect_arrived(2 * weights->size());
}

TEST_F(Publishing, sends_nothing_where_there_are_no_peers) {
  const auto weights = std::make_shared<std::vector<float>>(100'000, 1.0F);
  Publication news("update");
  write(news, weights);
  news.tell({});
  EXPECT_TRUE(news.wait(0ms));
  EXPECT_TRUE(news.released());
  EXPECT_EQ(weights.use_count(), 1);
}

TEST_F(Publishing, its_end_is_told_once_when_there_are_all_statuses) {
  workers_[1].close();
  while (peers_[1].failure().ok()) std::this_thread::yield();
  std::atomic<int> num_ends{0};
  Publication news("update");
  news.on_finished([&] {
    for (size_t i = 0; i < peers_.size(); ++i) EXPECT_EQ(news.status(i).ok(), i != 1);
    num_ends.fetch_add(1);
  });
  for (int turn = 1; turn <= 20; ++turn) {
    const auto weights = std::make_shared<std::vector<float>>(100'000, 1.0F);
    write(news, weights);
    news.tell(peers_);
    ASSERT_TRUE(news.wait(10s));
    EXPECT_EQ(num_ends.load(), turn);
    news.open("update");  // some calls still read the previous message
  }
  expect_arrived(20 * 2 * 100'000);
  news.on_finished([&] { num_ends.store(0); });
  news.tell({});
  EXPECT_EQ(num_ends.load(), 0);
}

TEST_F(Publishing, its_end_is_told_though_it_is_gone) {
  const auto weights = std::make_shared<std::vector<float>>(100'000, 1.0F);
  const auto num_ends = std::make_shared<std::atomic<int>>(0);
  for (int i = 0; i < 10; ++i) {
    Publication news("update");
    news.on_finished([num_ends] { num_ends->fetch_add(1); });
    write(news, weights);
    news.tell(peers_);
  }
  while (num_ends->load() < 10) std::this_thread::yield();
  while (num_ends.use_count() != 1) std::this_thread::yield();
  EXPECT_EQ(num_ends->load(), 10);
  expect_arrived(10 * kNumWorkers * weights->size());
}

TEST_F(Publishing, peers_that_are_not_told_before_it_is_cancelled_are_not) {
  static constexpr size_t kMostAtPeer = 1023;
  std::mutex mutex;
  std::vector<Invocation> held;
  const auto hold = [&](Invocation& invocation) {
    const std::lock_guard lock(mutex);
    held.push_back(std::move(invocation));
  };
  ASSERT_TRUE(workers_[1].add("hold", hold).ok());
  std::vector<Call> before;
  for (size_t i = 0; i < kMostAtPeer; ++i) before.emplace_back(peers_[1], "hold").tell();
  const auto weights = std::make_shared<std::vector<float>>(100'000, 1.0F);
  std::atomic<int> num_ends{0};
  Publication news("update");
  news.on_finished([&] { num_ends.fetch_add(1); });
  write(news, weights);
  news.tell(peers_);
  expect_arrived(2 * weights->size());
  EXPECT_FALSE(news.wait(1ms));
  EXPECT_EQ(num_ends.load(), 0);
  news.cancel();
  ASSERT_TRUE(news.wait(10s));
  EXPECT_EQ(num_ends.load(), 1);
  EXPECT_EQ(news.status(1).code(), ErrorCode::kCancelled);
  while (!news.released()) std::this_thread::yield();
  EXPECT_EQ(weights.use_count(), 1);
  EXPECT_TRUE(news.status(0).ok());
  const auto num_held = [&] {
    const std::lock_guard lock(mutex);
    return held.size();
  };
  ASSERT_TRUE(comes_true([&] { return num_held() == kMostAtPeer; }));
  const std::vector<Invocation> answered = std::exchange(held, {});
  EXPECT_EQ(num_elements_.load(), 0u);
}

TEST_F(Publishing, what_is_under_way_goes_on_without_it) {
  const auto weights = std::make_shared<std::vector<float>>(100'000, 1.0F);
  {
    Publication news("update");
    for (int i = 0; i < 10; ++i) {
      write(news, weights);
      news.tell(peers_);
      Publication moved = std::move(news);
      news = std::move(moved);
      news.open("update");
    }
  }
  expect_arrived(10 * kNumWorkers * weights->size());
  EXPECT_TRUE(publisher_.drain(10s));
  while (weights.use_count() != 1) std::this_thread::yield();
}

TEST_F(Publishing, what_cannot_be_sent_fails_for_each) {
  const std::vector<int64_t> shape(65, 1);
  const float number = 1.0F;
  Publication news("update");
  news.message().tensor({.type = DataType::kFloat32, .shape = shape, .data = std::as_bytes(std::span(&number, 1))});
  news.tell(peers_);
  ASSERT_TRUE(news.wait(10s));
  for (size_t i = 0; i < peers_.size(); ++i) {
    EXPECT_EQ(news.status(i).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(news.status(i).message(), "dimensions of a tensor: 65; allowed: up to 64");
  }
}

}  // namespace
}  // namespace axon::library
