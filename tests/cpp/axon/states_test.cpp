// Accessors of the library's types in every state: before a call is finished, after it has failed or lost a race with a
// cancellation, and after it was moved from.
#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "axon/connected_pair.hpp"

namespace axon::library {
namespace {

// Answers when the test says so.
struct Held {
  ConnectedPair pair;
  std::atomic<bool> has_arrived{false};
  Invocation invocation{nullptr};

  Held() {
    EXPECT_TRUE(pair.server
                    .add("held",
                         [this](Invocation& received) {
                           invocation = std::move(received);
                           has_arrived.store(true);
                         })
                    .ok());
  }
  ~Held() { invocation.fail("RuntimeError", "the test is over"); }
  void await() {
    while (!has_arrived.load()) std::this_thread::yield();
  }
};

TEST(States, a_call_before_its_end_has_a_status_and_an_empty_reply) {
  Held held;
  Call call(held.pair.to_server, "held");
  const auto expect_nothing = [&] {
    EXPECT_FALSE(call.finished());
    EXPECT_TRUE(call.status().ok());
    EXPECT_EQ(call.status().code(), ErrorCode::kOk);
    EXPECT_EQ(call.reply().num_tensors(), 0u);
    EXPECT_EQ(call.reply().values().next().kind, rpc::Value::Kind::kBroken);
    EXPECT_EQ(call.failure(), "");
    EXPECT_EQ(call.traceback(), "");
  };
  expect_nothing();
  call.start();
  held.await();
  expect_nothing();
  held.invocation.answer().integer(5);
  held.invocation.reply();
  ASSERT_TRUE(call.wait(10s));
  EXPECT_EQ(call.status().code(), ErrorCode::kOk);
  EXPECT_EQ(call.status().message(), "");
  EXPECT_EQ(call.reply().values().next().integer, 5);
}

TEST(States, a_failed_call_has_a_reply_that_can_be_read) {
  Held held;
  Call call(held.pair.to_server, "held");
  call.start();
  held.await();
  call.cancel();
  ASSERT_TRUE(call.wait(10s));
  EXPECT_EQ(call.status().code(), ErrorCode::kCancelled);
  EXPECT_EQ(call.reply().num_tensors(), 0u);
  EXPECT_EQ(call.reply().values().next().kind, rpc::Value::Kind::kBroken);
  EXPECT_EQ(call.failure(), "");
}

TEST(States, a_call_that_was_moved_from_is_over_and_can_be_opened_again) {
  ConnectedPair pair;
  ASSERT_TRUE(pair.server.add("echo", echo).ok());
  Call call(pair.to_server, "echo");
  Call taken(std::move(call));
  EXPECT_TRUE(call.finished());
  EXPECT_TRUE(call.released());
  EXPECT_TRUE(call.wait(10s));
  EXPECT_EQ(call.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(call.reply().num_tensors(), 0u);
  EXPECT_EQ(call.failure(), "");
  call.cancel();
  EXPECT_DEATH(call.start(), "moved from");
  call.open(pair.to_server, "echo");
  for (Call* each : {&call, &taken}) {
    each->start();
    ASSERT_TRUE(each->wait(10s));
    EXPECT_TRUE(each->status().ok());
  }
}

TEST(States, a_peer_that_was_moved_from_cannot_be_called) {
  ConnectedPair pair;
  Peer peer = pair.to_server;
  const Peer taken(std::move(peer));
  EXPECT_EQ(taken.name(), "server");
  EXPECT_EQ(peer.name(), "");
  EXPECT_EQ(peer.incarnation(), 0u);
  EXPECT_FALSE(peer.failure().ok());
  EXPECT_TRUE(peer.drain(1s));
  Call call(peer, "echo");
  call.start();
  EXPECT_TRUE(call.wait(1s));
  EXPECT_EQ(call.status().code(), ErrorCode::kInvalidArgument);
}

TEST(States, a_stream_has_no_value_before_the_first_and_once_it_was_moved_from) {
  ConnectedPair pair;
  ASSERT_TRUE(pair.server
                  .add_generator("once",
                                 [](Received) -> Generator {
                                   return [is_over = false](Next& next) mutable {
                                     if (std::exchange(is_over, true)) return next.end();
                                     next.value().integer(3);
                                     next.reply();
                                   };
                                 })
                  .ok());
  Stream stream(pair.to_server, "once");
  stream.arguments(0);
  const auto expect_nothing = [](Stream& of) {
    EXPECT_EQ(of.value().next().kind, rpc::Value::Kind::kBroken);
    EXPECT_EQ(of.received().num_tensors(), 0u);
    EXPECT_EQ(of.failure(), "");
    EXPECT_EQ(of.traceback(), "");
  };
  expect_nothing(stream);
  stream.start();
  expect_nothing(stream);
  ASSERT_TRUE(stream.next(10s));
  EXPECT_EQ(stream.value().next().integer, 3);
  Stream taken(std::move(stream));
  expect_nothing(stream);
  EXPECT_TRUE(stream.finished());
  EXPECT_FALSE(stream.next(1s));
  EXPECT_EQ(stream.status().code(), ErrorCode::kInvalidArgument);
  stream.stop();
  EXPECT_FALSE(taken.next(10s));
  EXPECT_TRUE(taken.status().ok());
  EXPECT_EQ(taken.status().code(), ErrorCode::kOk);
}

TEST(States, an_invocation_that_was_answered_has_no_caller_and_a_second_answer_is_ignored) {
  ConnectedPair pair;
  std::atomic<bool> is_checked{false};
  ASSERT_TRUE(pair.server
                  .add("answers",
                       [&](Invocation& invocation) {
                         invocation.answer().integer(7);
                         invocation.reply();
                         EXPECT_TRUE(invocation.is_answered());
                         EXPECT_EQ(invocation.function(), "");
                         EXPECT_EQ(invocation.caller().name(), "");
                         EXPECT_FALSE(invocation.wants_answer());
                         EXPECT_TRUE(invocation.is_cancelled());
                         EXPECT_EQ(invocation.arguments().num_tensors(), 0u);
                         invocation.reply();
                         invocation.fail("RuntimeError", "too late");
                         is_checked.store(true);
                       })
                  .ok());
  Call call(pair.to_server, "answers");
  call.start();
  ASSERT_TRUE(call.wait(10s));
  EXPECT_TRUE(call.status().ok());
  EXPECT_EQ(call.reply().values().next().integer, 7);
  while (!is_checked.load()) std::this_thread::yield();
}

TEST(States, mailboxes_outboxes_and_publications_that_were_moved_from_say_so) {
  ConnectedPair pair;
  Mailbox mailbox = pair.server.mailbox("news").value();
  const Mailbox kept(std::move(mailbox));
  EXPECT_EQ(kept.probe(), 0u);
  EXPECT_EQ(mailbox.probe(), 0u);
  EXPECT_EQ(mailbox.take(1s).status().code(), ErrorCode::kInvalidArgument);
  Outbox outbox = pair.client.outbox(pair.to_server, "news").value();
  const Outbox kept_outbox(std::move(outbox));
  Call call(outbox);
  call.start();
  EXPECT_TRUE(call.wait(1s));
  EXPECT_EQ(call.status().code(), ErrorCode::kInvalidArgument);
  Publication news("news");
  EXPECT_EQ(news.status(0).code(), ErrorCode::kInvalidArgument);
  const Publication kept_news(std::move(news));
  EXPECT_TRUE(news.finished());
  EXPECT_TRUE(news.released());
  EXPECT_DEATH(news.message(), "moved from");
}

TEST(States, a_runtime_that_was_moved_from_is_closed) {
  ConnectedPair pair;
  ASSERT_TRUE(pair.server.add("echo", echo).ok());
  Runtime kept(std::move(pair.server));
  Runtime& gone = pair.server;
  EXPECT_EQ(kept.name(), "server");
  EXPECT_EQ(gone.name(), "");
  EXPECT_EQ(gone.incarnation(), 0u);
  EXPECT_EQ(gone.num_connections(), 0u);
  EXPECT_FALSE(gone.counts().has_value());
  EXPECT_FALSE(gone.serve(1s));
  EXPECT_TRUE(gone.drain(1s));
  gone.stop();
  gone.close();
  const auto address = kept.address().value();
  const std::vector<std::pair<const char*, Status>> refusals = [&] {
    std::vector<std::pair<const char*, Status>> all;
    all.emplace_back("add", gone.add("other", echo));
    all.emplace_back("add_generator", gone.add_generator("numbers", [](Received) -> Generator { return {}; }));
    all.emplace_back("mailbox", std::move(gone.mailbox("news").status()));
    all.emplace_back("outbox", std::move(gone.outbox(pair.to_server, "news").status()));
    all.emplace_back("listen", std::move(gone.listen("127.0.0.1", 0, "sixteen bytes of it").status()));
    all.emplace_back("address", std::move(gone.address().status()));
    all.emplace_back("connect", std::move(gone.connect(address, 1s).status()));
    all.emplace_back("connect", std::move(gone.connect("127.0.0.1", 1, "sixteen bytes of it", 1s).status()));
    return all;
  }();
  for (const auto& [call, refusal] : refusals) {
    EXPECT_EQ(refusal.code(), ErrorCode::kInvalidArgument) << call;
    EXPECT_NE(refusal.message().find("moved from"), std::string::npos) << call << ": " << refusal.message();
  }
  Call call(pair.to_server, "echo");
  call.start();
  ASSERT_TRUE(call.wait(10s));
  EXPECT_TRUE(call.status().ok()) << call.status().message();
  gone = ConnectedPair::opened("another");
  EXPECT_EQ(gone.name(), "another");
}

TEST(States, a_mail_that_was_moved_from_has_no_content) {
  ConnectedPair pair;
  Mailbox mailbox = pair.server.mailbox("news").value();
  const Outbox outbox = pair.client.outbox(pair.to_server, "news").value();
  static constexpr int64_t kShape[]{3};
  static constexpr float kFloats[]{1, 2, 3};
  Call call(outbox);
  call.request().tensor({.type = DataType::kFloat32, .shape = kShape, .data = std::as_bytes(std::span(kFloats))});
  call.start();
  Mail mail = mailbox.take(10s).value();
  ASSERT_EQ(mail.num_tensors(), 1u);
  const Mail kept(std::move(mail));
  EXPECT_EQ(kept.num_tensors(), 1u);
  EXPECT_EQ(kept.sender().name(), "client");
  EXPECT_EQ(mail.sender().name(), "");
  EXPECT_EQ(mail.values().next().kind, rpc::Value::Kind::kBroken);
  EXPECT_EQ(mail.num_tensors(), 0u);
  EXPECT_TRUE(mail.tensor(0).data.empty());
  EXPECT_FALSE(mail.take(0));
  EXPECT_EQ(mail.take_owner(0).get(), nullptr);
  EXPECT_TRUE(call.wait(10s));
}

// Answers on its own thread, as soon as it can.
class Answerer {
 public:
  ~Answerer() {
    is_over_.store(true);
    thread_.join();
  }
  void add(Invocation& invocation) {
    const std::lock_guard lock(mutex_);
    arrived_.push_back(std::move(invocation));
  }

 private:
  void run() {
    while (!is_over_.load()) {
      std::vector<Invocation> arrived;
      {
        const std::lock_guard lock(mutex_);
        arrived.swap(arrived_);
      }
      for (Invocation& invocation : arrived) invocation.reply();
      std::this_thread::yield();
    }
  }

  std::mutex mutex_;
  std::vector<Invocation> arrived_;
  std::atomic<bool> is_over_{false};
  std::thread thread_{[this] { run(); }};
};

// The call has a status that can be read, in either order of the two.
TEST(States, a_hundred_thousand_cancels_race_with_their_answers) {
  Answerer answerer;
  ConnectedPair pair;
  ASSERT_TRUE(pair.server.add("answered", [&](Invocation& invocation) { answerer.add(invocation); }).ok());
  std::vector<Call> calls;
  for (size_t i = 0; i < 32; ++i) calls.emplace_back(pair.to_server, "answered");
  size_t num_answered = 0;
  size_t num_cancelled = 0;
  while (num_answered + num_cancelled < 100'000) {
    for (Call& call : calls) {
      call.open(pair.to_server, "answered");
      call.request().nothing();
      call.start();
    }
    for (Call& call : calls) call.cancel();
    for (Call& call : calls) {
      ASSERT_TRUE(call.wait(30s));
      ASSERT_TRUE(call.status().code() == ErrorCode::kOk || call.status().code() == ErrorCode::kCancelled)
          << call.status().message();
      ++(call.status().ok() ? num_answered : num_cancelled);
    }
  }
  RecordProperty("num_answered", static_cast<int>(num_answered));
  RecordProperty("num_cancelled", static_cast<int>(num_cancelled));
}

}  // namespace
}  // namespace axon::library
