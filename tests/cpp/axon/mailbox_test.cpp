// Messages to tags: they arrive in order, and are held back while no receiver takes them.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "axon/connected_pair.hpp"

namespace axon::library {
namespace {

class MailboxTest : public testing::Test {
 protected:
  Mailbox opened(MailboxOptions options = {}) { return pair_.server.mailbox("news", std::move(options)).value(); }
  Outbox to_news() { return pair_.client.outbox(pair_.to_server, "news").value(); }

  // Sends `num_messages` numbers, each with a tensor of `num_elements`; larger tensors travel in payload frames.
  static std::vector<Call> send(const Outbox& outbox, int64_t num_messages, size_t num_elements = 1) {
    std::vector<Call> calls;
    for (int64_t i = 0; i < num_messages; ++i) {
      Call& call = calls.emplace_back(outbox);
      const auto elements = std::make_shared<std::vector<int64_t>>(i % 2 == 0 ? num_elements : 1, i);
      Message message = call.request();
      message.array(2);
      message.integer(i);
      message.tensor(std::span<const int64_t>(*elements), Owner::of(elements));
      call.start();
    }
    return calls;
  }

  static void expect_next(Mailbox& news, int64_t number) {
    Result<Mail> mail = news.take(10s);
    ASSERT_TRUE(mail.ok()) << mail.status().message();
    rpc::ValueReader values = mail.value().values();
    EXPECT_EQ(values.next().count, 2u);
    EXPECT_EQ(values.next().integer, number);
    EXPECT_EQ(mail.value().sender().name(), "client");
    EXPECT_EQ(mail.value().num_tensors(), 1u);
    EXPECT_EQ(mail.value().tensor(0).as<int64_t>().back(), number);
    EXPECT_TRUE(mail.value().take(0));
  }

  void expect_accepted(std::vector<Call>& calls) {
    for (Call& call : calls) {
      ASSERT_TRUE(call.wait(10s));
      EXPECT_TRUE(call.status().ok()) << call.status().message() << ": " << call.failure();
    }
  }

  // Sends a message that takes its turn and fails.
  static Call unsendable(const Outbox& outbox) {
    static constexpr float kNumber = 1.0F;
    const std::vector<int64_t> shape(65, 1);
    Call call(outbox);
    call.request().tensor({.type = DataType::kFloat32, .shape = shape, .data = std::as_bytes(std::span(&kNumber, 1))});
    return call;
  }

  // All messages that it starts begin together, before any of them has ended.
  static void start_within_a_completion(const Peer& peer, std::function<void()> start) {
    Call call(peer, "");
    call.on_finished(std::move(start));
    call.start();
    ASSERT_TRUE(call.wait(10s));
  }

  ConnectedPair pair_;
};

TEST_F(MailboxTest, messages_come_in_the_order_in_which_they_were_sent) {
  Mailbox news = opened();
  const Outbox outbox = to_news();
  for (const size_t num_elements : {1, 1000, 100'000}) {
    std::vector<Call> calls = send(outbox, 50, num_elements);
    for (int64_t i = 0; i < 50; ++i) expect_next(news, i);
    expect_accepted(calls);
  }
  EXPECT_EQ(news.probe(), 0u);
}

TEST_F(MailboxTest, those_beyond_its_capacity_wait_and_are_not_accepted) {
  Mailbox news = opened({.capacity = 3});
  std::vector<Call> calls = send(to_news(), 5);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(calls[i].wait(10s));
  while (news.probe() < 4) pair_.client.serve(1ms);  // one waits for room at the receiver, the other one here
  EXPECT_FALSE(calls[3].wait(20ms));
  EXPECT_EQ(news.probe(), 4u);
  expect_next(news, 0);
  EXPECT_TRUE(calls[3].wait(10s));
  while (news.probe() < 4) pair_.client.serve(1ms);
  EXPECT_FALSE(calls[4].wait(20ms));
  for (int64_t i = 1; i < 5; ++i) expect_next(news, i);
  expect_accepted(calls);
}

TEST_F(MailboxTest, what_is_beyond_its_capacity_stays_with_its_senders) {
  constexpr size_t kNumMessages = 300;
  Mailbox news = opened({.capacity = 2});
  Runtime second = ConnectedPair::opened("second");
  const Peer from_second = second.connect(pair_.server.address().value(), 10s).value();
  const Outbox outboxes[] = {to_news(), second.outbox(from_second, "news").value()};
  std::vector<Call> calls;
  for (const Outbox& outbox : outboxes) {
    for (Call& call : send(outbox, kNumMessages, 8000)) calls.push_back(std::move(call));
  }
  for (size_t num_taken = 0; num_taken < 2 * kNumMessages; ++num_taken) {
    ASSERT_TRUE(news.take(10s).ok());
    EXPECT_LE(news.probe(), 2U + 2 + 2);  // what was granted while there was room, and one message of each
  }
  expect_accepted(calls);
}

TEST_F(MailboxTest, messages_that_are_given_up_take_no_others_room) {
  Mailbox news = opened({.capacity = 2});
  const Outbox outbox = to_news();
  for (int64_t round = 0; round < 20; ++round) {
    std::vector<Call> calls = send(outbox, 50, 8000);
    for (int64_t i = 49; i >= 3; --i) calls[i].cancel();
    size_t num_accepted = 0;
    while (news.take(num_accepted < 3 ? 10s : 0s).ok()) ++num_accepted;
    EXPECT_GE(num_accepted, 3U);
    for (Call& call : calls) ASSERT_TRUE(call.wait(10s));
  }
  while (news.take(0ms).ok()) {
  }
  std::vector<Call> calls = send(outbox, 2);
  expect_accepted(calls);
}

TEST_F(MailboxTest, a_waiter_gets_what_arrives_or_hears_that_nothing_has) {
  Mailbox news = opened();
  Result<Mail> nothing = news.take(10ms);
  ASSERT_FALSE(nothing.ok());
  EXPECT_EQ(nothing.status().code(), ErrorCode::kTimeout);
  EXPECT_EQ(nothing.status().message(), "no message arrived within 10 ms");
  std::thread taker([&] { expect_next(news, 0); });
  std::vector<Call> calls = send(to_news(), 1, 100'000);
  expect_accepted(calls);
  taker.join();
}

TEST_F(MailboxTest, those_that_have_failed_hold_up_no_later_ones) {
  Mailbox news = opened();
  const Outbox outbox = to_news();
  const std::vector<float> large(100'000);
  for (int i = 0; i < 10; ++i) {
    Call refused = unsendable(outbox);
    Call later(outbox);
    later.request().tensor(std::span(large));
    std::thread other([&] { later.start(); });  // so that either may be the first
    refused.start();
    other.join();
    ASSERT_TRUE(refused.wait(10s));
    EXPECT_EQ(refused.status().code(), ErrorCode::kInvalidArgument);
    Result<Mail> mail = news.take(10s);
    ASSERT_TRUE(mail.ok()) << mail.status().message();
    EXPECT_EQ(mail.value().tensor(0).as<float>().size(), large.size());
    ASSERT_TRUE(later.wait(10s));
    EXPECT_TRUE(later.status().ok());
    while (!later.released()) std::this_thread::yield();
  }
}

TEST_F(MailboxTest, not_even_those_that_hold_all_slots) {
  Mailbox news = opened({.capacity = 2000});
  const Outbox outbox = to_news();
  Call failing = unsendable(outbox);
  std::vector<Call> later;
  for (int64_t i = 0; i < 1500; ++i) later.emplace_back(outbox).request().integer(i);
  start_within_a_completion(pair_.to_server, [&] {
    failing.start();
    for (Call& call : later) call.start();
  });
  expect_accepted(later);
  EXPECT_EQ(news.probe(), later.size());
}

TEST_F(MailboxTest, nor_those_whose_sender_lets_nothing_more_wait) {
  std::mutex mutex;
  std::vector<Invocation> held;
  const auto hold = [&](Invocation& invocation) {
    const std::lock_guard lock(mutex);
    held.push_back(std::move(invocation));
  };
  ASSERT_TRUE(pair_.server.add("hold", hold).ok());
  Runtime narrow = Runtime::open({.name = "narrow", .max_waiting_calls = 1}).value();
  const Peer to_server = narrow.connect(pair_.server.address().value(), 10s).value();
  std::vector<Call> failing;
  std::vector<Call> later;
  for (const char* tag : {"a", "b", "c"}) {
    ASSERT_TRUE(pair_.server.mailbox(tag).ok());
    const Outbox outbox = narrow.outbox(to_server, tag).value();
    failing.push_back(unsendable(outbox));
    later.emplace_back(outbox).request().nothing();
  }
  std::vector<Call> others;
  for (int i = 0; i < 1100; ++i) others.emplace_back(to_server, "hold");
  start_within_a_completion(to_server, [&] {
    for (std::vector<Call>* calls : {&failing, &later, &others}) {
      for (Call& call : *calls) call.start();
    }
  });
  expect_accepted(later);
  pair_.server.close();  // before the objects that its function refers to are destroyed
}

// Writes its messages by hand, as a peer whose large messages arrive late.
TEST_F(MailboxTest, messages_that_their_sender_has_given_up_are_refused_when_they_arrive) {
  Mailbox news = opened({.capacity = 4});
  const auto sent = [&](int64_t number, int64_t num_unsettled) {
    Call call(pair_.to_server, "axon.mailbox:news");
    Message message = call.request();
    message.array(2);
    message.array(4);
    for (const int64_t value : {number, num_unsettled, int64_t{0}, number}) message.integer(value);
    message.nothing();
    call.start();
    return call;
  };
  const auto taken = [&] { return news.take(10s).value().values().next().integer; };
  Call early = sent(1, 1);
  Call later = sent(3, 3);
  EXPECT_FALSE(early.wait(20ms));  // 0 may still arrive
  Call settled(pair_.to_server, "axon.settled");
  Message message = settled.request();
  message.array(2);
  message.array(2);
  message.text("news");
  message.integer(1);  // 0 will not arrive
  message.nothing();
  settled.tell();
  EXPECT_EQ(taken(), 1);
  Call late = sent(0, 0);
  ASSERT_TRUE(late.wait(10s));
  EXPECT_EQ(late.status().message(), "TimeoutError");
  EXPECT_EQ(late.failure(), "the message arrived after its sender gave up");
  EXPECT_FALSE(later.wait(20ms));  // 2 may still arrive
  Call last = sent(5, 0);
  EXPECT_EQ(taken(), 3);
  EXPECT_EQ(taken(), 5);
  for (Call* call : {&early, &later, &last}) {
    ASSERT_TRUE(call->wait(10s));
    EXPECT_TRUE(call->status().ok()) << call->failure();
  }
}

TEST_F(MailboxTest, messages_of_several_threads_and_peers_come_once_each) {
  constexpr int64_t kNumMessages = 50;
  constexpr size_t kNumSenders = 3;
  Mailbox news = opened({.capacity = 4});
  Runtime second = ConnectedPair::opened("second");
  const Peer from_second = second.connect(pair_.server.address().value(), 10s).value();
  const Outbox outboxes[kNumSenders] = {to_news(), to_news(), second.outbox(from_second, "news").value()};
  std::vector<std::thread> senders;
  for (const Outbox& outbox : outboxes) {
    senders.emplace_back([this, &outbox] {
      std::vector<Call> calls = send(outbox, kNumMessages, 5000);
      expect_accepted(calls);
    });
  }
  int64_t sum = 0;
  for (size_t i = 0; i < kNumSenders * kNumMessages; ++i) {
    Result<Mail> mail = news.take(10s);
    ASSERT_TRUE(mail.ok()) << mail.status().message();
    sum += mail.value().tensor(0).as<int64_t>().front();
  }
  for (std::thread& sender : senders) sender.join();
  EXPECT_EQ(sum, static_cast<int64_t>(kNumSenders) * kNumMessages * (kNumMessages - 1) / 2);
  EXPECT_EQ(news.probe(), 0u);
}

TEST_F(MailboxTest, tensors_come_into_what_the_mailbox_gives) {
  std::shared_ptr<std::vector<int64_t>> memory;
  Mailbox news = opened({.ask = [&](Announced& coming) {
    memory = std::make_shared<std::vector<int64_t>>(coming.tensor(0).shape[0]);
    coming.receive_into(0, std::span(*memory), Owner::of(memory));
  }});
  const Outbox outbox = to_news();
  for (const size_t num_elements : {1, 100'000}) {
    std::vector<Call> calls = send(outbox, 1, num_elements);
    {
      Result<Mail> mail = news.take(10s);
      ASSERT_TRUE(mail.ok());
      expect_accepted(calls);
      EXPECT_EQ(mail.value().tensor(0).as<int64_t>().data(), memory->data());
      EXPECT_EQ(memory.use_count(), 2);
    }
    EXPECT_EQ(memory.use_count(), 1);
  }
}

TEST_F(MailboxTest, what_has_arrived_may_be_taken_when_the_runtime_is_closed) {
  Mailbox news = opened({.capacity = 1});
  std::vector<Call> calls = send(to_news(), 2);
  while (news.probe() < 2) pair_.client.serve(1ms);
  Mailbox other = pair_.server.mailbox("other").value();
  std::thread taker([&] {
    Result<Mail> mail = other.take(10s);
    ASSERT_FALSE(mail.ok());
    EXPECT_EQ(mail.status().code(), ErrorCode::kAborted);
    EXPECT_EQ(mail.status().message(), "the runtime 'server' is closed");
  });
  pair_.server.close();
  taker.join();
  expect_next(news, 0);
  expect_next(news, 1);
  EXPECT_FALSE(news.take(10s).ok());
  EXPECT_TRUE(calls[1].wait(10s));
  Result<Mail> late = pair_.server.mailbox("late").value().take(10min);
  EXPECT_EQ(late.status().code(), ErrorCode::kAborted);
}

TEST_F(MailboxTest, what_is_none_says_so) {
  Mailbox news = opened();
  const auto refused = [](auto opened) { return opened.ok() ? "" : opened.status().message(); };
  EXPECT_EQ(refused(pair_.server.mailbox("news")), "function 'axon.mailbox:news' already exists");
  EXPECT_EQ(refused(pair_.server.mailbox("other", {.capacity = 0})), "mailbox: capacity is 0; allowed: 1 or more");
  const std::string tag(243, 'x');
  EXPECT_EQ(refused(pair_.server.mailbox(tag)), "mailbox: tag is 243 bytes long; allowed: up to 242");
  EXPECT_EQ(refused(pair_.client.outbox(pair_.to_server, tag)), "outbox: tag is 243 bytes long; allowed: up to 242");
  std::vector<Call> calls = send(pair_.client.outbox(pair_.to_server, "absent").value(), 1);
  ASSERT_TRUE(calls[0].wait(10s));
  EXPECT_EQ(calls[0].status().message(), "LookupError");
  Call other(pair_.to_server, "axon.mailbox:news");
  other.request().text("no message");
  other.start();
  ASSERT_TRUE(other.wait(10s));
  EXPECT_EQ(other.status().message(), "TypeError");
}

}  // namespace
}  // namespace axon::library
