// Tests the thread that runs handshakes, without a transport.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/tcp_socket.hpp"
#include "transport/rails/rail_handshakes.hpp"

namespace axon::transport {
namespace {

// Stays in a call, within the lock of the handlers, until it is told to leave.
class BusyHandler final : public RailHandshakes::Handler {
 public:
  void on_connected(const RailRequest&, FileDescriptor, const Digest&) noexcept override {}
  void on_not_connected(const RailRequest&, Status) noexcept override {}
  void on_accepted(uint64_t, uint32_t, FileDescriptor, const Digest&) noexcept override {}
  void on_stranger(const char*) noexcept override {
    is_called_.store(true);
    is_called_.notify_all();
    may_leave_.wait(false);
  }

  void await_call() noexcept { is_called_.wait(false); }
  void leave() noexcept {
    may_leave_.store(true);
    may_leave_.notify_all();
  }

 private:
  std::atomic<bool> is_called_{false};
  std::atomic<bool> may_leave_{false};
};

TEST(RailHandshakes, do_not_block_a_forked_child) {
  const std::string devices[] = {"lo"};
  auto opened = RailHandshakes::open(RailAddress::of_devices(devices, /*name=*/1).value());
  ASSERT_TRUE(opened.ok());
  RailHandshakes& handshakes = *opened.value();
  BusyHandler handler;
  handshakes.serve(RailUse::kMessages, &handler);
  ASSERT_TRUE(handshakes.start().ok());
  const SystemAddress to = system_address(handshakes.address().addresses.front(), handshakes.address().port);
  {
    const FileDescriptor stranger(::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(stranger.get(), to.get(), to.num_bytes), 0) << last_error();
  }
  handler.await_call();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // ends a child that waits for the lock
    handshakes.serve(RailUse::kMessages, nullptr);
    _exit(0);
  }
  int ended = 0;
  EXPECT_EQ(waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended)) << "the child waited for a lock of its parent";
  handler.leave();
  handshakes.serve(RailUse::kMessages, nullptr);
}

}  // namespace
}  // namespace axon::transport
