#include "axon/call.hpp"

#include <utility>

#include "runtime/call.hpp"
#include "runtime/connection.hpp"

namespace {
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);  // can be added to a clock
}  // namespace

namespace axon::library {

struct Call::State final : axon::Call {
  std::function<void()> callback;

 private:
  void on_finished() noexcept override {
    if (callback) callback();
  }
};

Call::Call(const Peer& peer, std::string_view function) {
  open(peer, function);
}

Call::Call(Call&& other) noexcept
    : state_(std::exchange(other.state_, nullptr)),
      connection_(std::move(other.connection_)),
      is_started_(other.is_started_) {}

Call& Call::operator=(Call&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(connection_, other.connection_);
  std::swap(is_started_, other.is_started_);
  return *this;
}

Call::~Call() {
  let_go();
}

void Call::let_go() noexcept {
  if (state_ != nullptr) std::exchange(state_, nullptr)->release();
}

// What has not been released yet is left to the engine, and something new takes its place.
void Call::open(const Peer& peer, std::string_view function) {
  connection_ = peer.connection();
  if (state_ == nullptr || (is_started_ && !state_->released())) {
    auto* fresh = new State;
    if (state_ != nullptr) {
      fresh->timeout = state_->timeout;
      fresh->callback = state_->callback;
    }
    let_go();
    state_ = fresh;
  }
  state_->reset();
  state_->request.open(function.size() <= kLongestName ? function : std::string_view());
  is_started_ = false;
}

Message Call::request() noexcept {
  return Message(state_->request);
}

void Call::set_timeout(std::chrono::milliseconds timeout) noexcept {
  state_->timeout = timeout;
}

void Call::on_finished(std::function<void()> callback) {
  state_->callback = std::move(callback);
}

void Call::start() noexcept {
  state_->answer = axon::Call::Answer::kAwaited;
  launch();
}

void Call::tell() noexcept {
  state_->answer = axon::Call::Answer::kNone;
  launch();
}

void Call::launch() noexcept {
  state_->request.seal();
  is_started_ = true;
  connection_->start(*state_);
}

bool Call::wait(std::chrono::milliseconds patience) noexcept {
  return connection_->wait(*state_, Clock::now() + std::min(patience, kLongest));
}

bool Call::finished() const noexcept {
  return state_->finished();
}

bool Call::released() const noexcept {
  return state_->released();
}

void Call::cancel() noexcept {
  connection_->cancel(*state_);
}

const Status& Call::status() const noexcept {
  return state_->status();
}

Received Call::reply() noexcept {
  return Received(state_->reply());
}

// [message, traceback, …], see Invocation::fail.
std::string_view Call::failure() noexcept {
  if (status().ok() || status().code() != ErrorCode::kRemote) return {};
  ValueReader values(state_->reply().values());
  return values.next().kind == Value::Kind::kArray ? values.next().text() : std::string_view();
}

}  // namespace axon::library
