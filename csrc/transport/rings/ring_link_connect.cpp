// Connects a link: makes its ring, asks the peer to read it, and looks for the answer.
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/random.hpp"
#include "transport/rings/ring_link.hpp"

namespace axon::transport {

// Descriptors of other links are closed once their rings are read. Those of the program may stay open.
static constexpr std::chrono::seconds kLongestShortage{1};
static constexpr std::chrono::milliseconds kBetweenTries{5};

void RingLink::connect() noexcept {
  if (state_ != State::kNew) return;
  if (short_since_ != sync::Clock::time_point{} && sync::Clock::now() < next_try_) return;
  const Status made = make_ring();
  if (made.ok()) return offer_ring();
  if (made.code() == ErrorCode::kResourceExhausted) {
    return await_descriptors("this process has had no file descriptor left to send to it (ulimit -n raises the limit)");
  }
  if (reads()) return;
  state_ = State::kNetwork;
  const std::string text =
      "messages to process " + std::to_string(address_.pid) + " cannot use a ring: " + made.message();
  // A warning if memory is short; information only if the processes may not access each other.
  wake_up_pipe_ ? log::warn(text) : log::info(text);
}

void RingLink::await_descriptors(const char* whose) noexcept {
  const auto now = sync::Clock::now();
  if (short_since_ == sync::Clock::time_point{}) short_since_ = now;
  next_try_ = now + kBetweenTries;
  state_ = State::kNew;
  if (now - short_since_ > kLongestShortage && fault_ == nullptr) fault_ = whose;
}

Status RingLink::open_wake_up_pipe() noexcept {
  if (wake_up_pipe_) return Status();
  Result<WakeUpPipe> opened = WakeUpPipe::open(address_);
  if (!opened.ok()) return std::move(opened.status());
  wake_up_pipe_.emplace(std::move(opened).value());
  return Status();
}

Status RingLink::make_ring() noexcept {
  AXON_TRY(open_wake_up_pipe());
  if (writer_) return Status();
  Result<RingWriter> made = RingWriter::make(shared_.own.key, address_.key);
  if (!made.ok()) return std::move(made.status());
  writer_.emplace(std::move(made).value());
  return Status();
}

// If the pipe is full, connect() calls again later.
void RingLink::offer_ring() noexcept {
  call_ = random_number() & ~RingCall::kForWant;
  const bool is_heard = wake_up_pipe_->call({.key = address_.key,
                                             .caller = shared_.own,
                                             .number = call_,
                                             .kind = RingCall::Kind::kRing,
                                             .descriptor = writer_->descriptor()});
  state_ = is_heard ? State::kCalled : State::kNew;
}

void RingLink::look_for_answer() noexcept {
  if (writer_->is_read()) {
    state_ = State::kOpen;
    short_since_ = {};
    if (refuses_ring_) fault_ = "it can read this process's messages, but this process cannot read its messages";
    return;
  }
  switch (wake_up_pipe_->has_refused(call_)) {
    case WakeUpPipe::Refused::kNo:
      break;
    case WakeUpPipe::Refused::kYes:
      state_ = State::kNetwork;
      writer_.reset();
      if (reads()) fault_ = "it writes to this process, but cannot read this process's messages";
      break;
    case WakeUpPipe::Refused::kForWant:
      await_descriptors("it has had no file descriptor left to receive from this process (ulimit -n raises the limit)");
      break;
    case WakeUpPipe::Refused::kMaybe:
      offer_ring();
      break;
  }
}

}  // namespace axon::transport
