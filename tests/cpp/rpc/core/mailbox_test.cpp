// A message that one thread puts into a mailbox while another one waits for it.
#include "rpc/core/mailboxes/mailbox.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "counted_new.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/networks.hpp"
#include "transport/node.hpp"

namespace {
thread_local const std::function<void()>* before_each_allocation = nullptr;
}  // namespace

void axon::on_allocation() noexcept {
  if (before_each_allocation != nullptr) (*before_each_allocation)();
}

namespace axon::rpc {
namespace {

class MailboxTest : public testing::Test {
 protected:
  static std::vector<std::unique_ptr<transport::Transport>> transports(transport::Network& network) {
    std::vector<std::unique_ptr<transport::Transport>> made;
    for (int i = 0; i < 2; ++i) made.push_back(network.make_transport());
    return made;
  }

  std::atomic<Invocation*> held_{nullptr};  // for functions of the server: valid until the server is destroyed
  std::unique_ptr<transport::Network> network_ = transport::kLoopback.make();
  TwoRuntimes pair_{transports(*network_)};
};

// The thread that puts it allocates memory in between, and pauses there until the other thread has destroyed it.
TEST_F(MailboxTest, a_message_may_be_destroyed_as_soon_as_its_receiver_is_over) {
  ASSERT_TRUE(pair_.server->add("hold", [this](Invocation& invocation) { held_.store(&invocation); }).ok());
  const CallPointer call = start(*pair_.to_server, "hold", {});
  while (held_.load() == nullptr) std::this_thread::yield();
  auto mail = std::make_unique<Mail>(*held_.load(), MailHeader{});

  Mailbox mailbox(1);
  const auto receiver = std::make_shared<MailReceiver>();
  mailbox.receive(receiver);
  std::atomic<bool> is_destroyed = false;
  std::thread taker([&] {
    while (!receiver->over().load()) std::this_thread::yield();
    EXPECT_NE(receiver->take(), nullptr);
    is_destroyed.store(true);
  });
  const std::function<void()> let_it_be_destroyed = [&] {
    while (receiver->over().load() && !is_destroyed.load()) std::this_thread::yield();
  };
  before_each_allocation = &let_it_be_destroyed;
  const bool is_first = mailbox.arrive(std::move(mail));
  before_each_allocation = nullptr;
  taker.join();
  EXPECT_TRUE(is_first);
  wait_for(*pair_.to_server, *call);
  EXPECT_TRUE(call->status().ok()) << call->status().message();
}

}  // namespace
}  // namespace axon::rpc
