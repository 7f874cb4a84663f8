// Memory that is reused for received tensors.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory_resource>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "axon/connected_pair.hpp"

namespace axon::library {
namespace {

constexpr size_t kPage = 4096;

// Provides a fixed number of bytes, and counts those in use.
class Counted : public std::pmr::memory_resource {
 public:
  explicit Counted(size_t num_bytes) : num_left_(num_bytes), num_bytes_(num_bytes) {}
  size_t num_out() const { return num_bytes_ - num_left_; }

 private:
  void* do_allocate(size_t num_bytes, size_t alignment) override {
    if (num_bytes > num_left_) throw std::bad_alloc();
    num_left_ -= num_bytes;
    return std::pmr::new_delete_resource()->allocate(num_bytes, alignment);
  }
  void do_deallocate(void* memory, size_t num_bytes, size_t alignment) override {
    num_left_ += num_bytes;
    std::pmr::new_delete_resource()->deallocate(memory, num_bytes, alignment);
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  std::atomic<size_t> num_left_;
  const size_t num_bytes_;
};

class Pooling : public testing::Test {
 protected:
  Pooling() { EXPECT_TRUE(pair_.server.add("echo", echo).ok()); }

  // Makes a call whose reply has this many pages. They go where `ask` says, and stay while the call is kept.
  Call received(const Ask& ask, size_t num_pages) {
    Call call(pair_.to_server, "echo");
    const std::vector<uint8_t> bytes(num_pages * kPage, static_cast<uint8_t>(num_pages));
    call.on_announced(ask);
    call.request().tensor(std::span<const uint8_t>(bytes));
    call.start();
    EXPECT_TRUE(call.wait(10s));
    while (!call.released()) std::this_thread::yield();
    EXPECT_TRUE(!call.status().ok() || std::ranges::equal(call.reply().tensor(0).as<uint8_t>(), bytes));
    return call;
  }

  void give_back(Call& call) { call.open(pair_.to_server, "echo"); }

  // Returns the status of the call; its memory has been returned by then.
  Status outcome(const Ask& ask, size_t num_pages) {
    Call call = received(ask, num_pages);
    Status status = call.status().clone();
    give_back(call);
    return status;
  }

  static void expect_refused(const Status& status, std::string_view why) {
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted);
    EXPECT_EQ(status.message(), why);
  }

  ConnectedPair pair_;
};

TEST_F(Pooling, memory_is_used_again) {
  const Pool pool(100 * kPage);
  std::set<const std::byte*> places;
  for (int i = 0; i < 10; ++i) {
    Call call = received(pool, 30);
    places.insert(call.reply().tensor(0).data.data());
    Call other = received(pool, 30);
    EXPECT_EQ(pool.num_bytes(), 60 * kPage);
    give_back(call);
    give_back(other);
  }
  EXPECT_LE(places.size(), 2u);
}

TEST_F(Pooling, there_is_no_more_than_it_may_have) {
  const Pool pool(5 * kPage);
  Call first = received(pool, 3);
  expect_refused(outcome(pool, 3), "Pool: tensor 0 takes 12288 bytes; allowed: 8192, the unused part of the pool");
  EXPECT_TRUE(outcome(pool, 2).ok());
  Call in_block = received(pool.or_blocks(), 3);
  ASSERT_TRUE(in_block.status().ok()) << in_block.status().message();
  EXPECT_TRUE(in_block.reply().take(0));
  EXPECT_FALSE(first.reply().take(0));
  give_back(first);
  EXPECT_TRUE(outcome(pool, 3).ok());
  EXPECT_EQ(pool.num_bytes(), 5 * kPage);
}

TEST_F(Pooling, other_sizes_take_the_place_of_what_is_not_in_use) {
  const Pool pool(100 * kPage);
  const Call kept = received(pool, 10);
  struct {
    size_t num_pages, num_held;
  } steps[] = {{60, 70}, {50, 70}, {30, 70}, {29, 99}, {61, 100}, {91, 100}, {90, 100}, {1, 11}, {1, 11}};
  for (const auto& step : steps) {
    EXPECT_EQ(outcome(pool, step.num_pages).ok(), step.num_pages <= 90) << step.num_pages << " pages";
    EXPECT_EQ(pool.num_bytes(), step.num_held * kPage) << "after " << step.num_pages << " pages";
  }
}

TEST_F(Pooling, what_lies_in_it_outlives_it_and_the_runtimes) {
  Counted memory(100 * kPage);
  Owner owner;
  std::span<std::byte> bytes;
  std::optional<Mail> mail;
  {
    ConnectedPair pair;
    const Pool pool(100 * kPage, memory);
    ASSERT_TRUE(pair.server.add("echo", echo).ok());
    Mailbox mailbox = pair.server.mailbox("tag", {.ask = pool}).value();
    const std::vector<uint8_t> sent(3 * kPage, 0x5A);
    Call call(pair.to_server, "echo");
    call.on_announced(pool);
    call.request().tensor(std::span<const uint8_t>(sent));
    call.start();
    ASSERT_TRUE(call.wait(10s));
    bytes = call.reply().tensor(0).data;
    owner = call.reply().take_owner(0);
    EXPECT_EQ(call.reply().take_owner(0).get(), nullptr);
    EXPECT_EQ(call.reply().take_owner(1).get(), nullptr);
    Call message(pair.client.outbox(pair.to_server, "tag").value());
    message.request().tensor(std::span<const uint8_t>(sent));
    message.start();
    mail = mailbox.take(10s).value();
    ASSERT_TRUE(message.wait(10s));
  }
  EXPECT_EQ(memory.num_out(), 6 * kPage);
  EXPECT_EQ(bytes.back(), std::byte{0x5A});
  owner = Owner();
  EXPECT_EQ(mail->tensor(0).data.back(), std::byte{0x5A});
  owner = mail->take_owner(0);
  mail.reset();
  EXPECT_EQ(memory.num_out(), 6 * kPage) << "what is not in use stays in the pool";
  owner = Owner();
  while (memory.num_out() != 0) std::this_thread::yield();
}

TEST_F(Pooling, where_there_is_no_memory_to_be_had_it_is_as_if_all_were_in_use) {
  Counted memory(3 * kPage);
  const Pool pool(100 * kPage, memory);
  const Call kept = received(pool, 2);
  expect_refused(outcome(pool, 2), "Pool: tensor 0 takes 8192 bytes; allowed: 401408, the unused part of the pool");
  EXPECT_TRUE(outcome(pool.or_blocks(), 2).ok());
  EXPECT_EQ(pool.num_bytes(), 2 * kPage);
}

TEST_F(Pooling, functions_refuse_what_there_is_no_memory_for) {
  const std::vector<uint8_t> bytes(8 * kPage);
  for (const int num_tensors : {0, 1, 2}) {
    const Pool pool(10 * kPage);
    const std::string function = "pooled" + std::to_string(num_tensors);
    ASSERT_TRUE(pair_.server.add(function, echo, pool).ok());
    Call call(pair_.to_server, function);
    for (int i = 0; i < num_tensors; ++i) call.request().tensor(std::span<const uint8_t>(bytes));
    call.request().tensor(std::span<const uint8_t>());
    call.start();
    ASSERT_TRUE(call.wait(10s));
    EXPECT_EQ(call.status().ok(), num_tensors < 2);
    if (call.status().ok()) continue;
    EXPECT_EQ(call.status().message(), "BufferError");
    EXPECT_EQ(call.failure(), "Pool: tensor 1 takes 32768 bytes; allowed: 8192, the unused part of the pool");
  }
}

TEST_F(Pooling, threads_share_it) {
  const Pool pool(20 * kPage);
  std::atomic<size_t> num_received{0};
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (size_t turn = 0; turn < 100; ++turn) {
        num_received.fetch_add(outcome(pool, 1 + (i + turn) % 10).ok() ? 1 : 0);
        EXPECT_LE(pool.num_bytes(), 20 * kPage);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(num_received.load(), 100u);  // two have room at any time
  EXPECT_TRUE(outcome(pool, 20).ok()) << "all memory was returned";
}

}  // namespace
}  // namespace axon::library
