// How this process closes a connection.
#include <algorithm>
#include <utility>

#include "rpc/core/connection.hpp"
#include "rpc/core/drive_until.hpp"
#include "rpc/core/runtime_core.hpp"

namespace axon::rpc {

// Goes through the submission queue of this process, so that calls started earlier are begun earlier.
struct Connection::Closing final : engine::Submission {
  Closing(std::shared_ptr<Connection> of, Clock::time_point at) noexcept : connection(std::move(of)), deadline(at) {}
  void begin() noexcept override {
    connection->begin_closing(deadline);
    delete this;
  }
  void complete() noexcept override {}

  const std::shared_ptr<Connection> connection;  // shared with the runtime, and the thread that closes it
  const Clock::time_point deadline;
};

void Connection::close(Clock::time_point deadline) noexcept {
  if (engine_.is_forked()) return;
  is_closed_here_.store(true);
  engine_.submit_after_completion(*new Closing(shared_from_this(), deadline));
  engine_.wake();
}

void Connection::begin_closing(Clock::time_point deadline) noexcept {
  closes_at_ = std::min(closes_at_.value_or(deadline), deadline);
  one_sided_.target().close();
  look_after_closing(Clock::now());
}

// The message may overtake answers, but calls that have not left yet will get none.
void Connection::on_close(const transport::CallHeader& header) noexcept {
  ends_after_answers_ = header.num_answers;
  end_waiting(closed_there());
  look_after_closing(Clock::now());
}

void Connection::look_after_closing(Clock::time_point now) noexcept {
  if (!is_closing()) return;
  if (ends_after_answers_ && (num_answers_ >= *ends_after_answers_ || num_calls_ == 0)) return fail(closed_there());
  if (closes_at_ && (core_.is_through_with(*this) || now >= *closes_at_)) end(closed_here());
}

Status Connection::closed_here() const {
  return {ErrorCode::kAborted, "peer '" + identity_.name + "' was closed here"};
}

Status Connection::closed_there() const {
  return {ErrorCode::kPeerLost, "'" + identity_.name + "' has closed the connection"};
}

bool Connection::await_end(Clock::time_point deadline) noexcept {
  if (engine_.is_forked()) return true;
  const auto ends = [&] {
    return engine_.exclusively([&] {
      look_after_closing(Clock::now());
      return !failure_.ok();
    });
  };
  return drive_until(engine_, ends, deadline);
}

// The peer's message of its end may still be under way when its socket is closed.
bool Connection::is_live() noexcept {
  if (is_closed_here_.load()) return false;  // which the progress owner may not have begun
  return engine_.exclusively([&] { return why_nothing_begins().ok() && !core_.refuses_ && !has_peer_hung_up(); });
}

bool Connection::has_ended() noexcept {
  return engine_.exclusively([&] { return !failure_.ok(); });
}

bool Connection::has_drained() noexcept {
  return engine_.is_forked() || engine_.exclusively([&] { return has_drained_; });
}

void Connection::end(const Status& reason) noexcept {
  if (!failure_.ok()) return;
  transport::CallHeader message = header_of(transport::MessageKind::kClose, 0);
  if (core_.is_through_with(*this)) message.num_answers = num_answered_;
  one_sided_.target().close();
  // The peer releases its memory when it learns of the end, so nothing here may use that memory any more.
  if (one_sided_.initiator().end_uses()) {
    send_control(message);
  } else {
    delayed_close_ = message;
  }
  fail(reason);
}

void Connection::send_delayed_close() noexcept {
  if (!delayed_close_ || one_sided_.initiator().has_uses()) return;
  send_control(*std::exchange(delayed_close_, std::nullopt));
}

}  // namespace axon::rpc
