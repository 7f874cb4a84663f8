#include "axon/call.hpp"

#include <utility>

#include "axon/deadline.hpp"
#include "axon/destinations.hpp"
#include "runtime/call.hpp"
#include "runtime/connection.hpp"

namespace axon::library {

struct Call::State final : axon::Call {
  std::shared_ptr<Connection> connection;  // owned with the runtime, which may be closed before
  std::function<void()> callback;
  Ask ask;

 private:
  void on_announced() noexcept override {
    Destinations to(reply());
    if (Status asked = to.ask(ask); !asked.ok()) return connection->decline(*this, std::move(asked));
    connection->accept(*this, to.buffers(), to.owners());
  }
  void on_finished() noexcept override {
    if (callback) callback();
  }
};

Call::Call(const Peer& peer, std::string_view function) {
  open(peer, function);
}

Call::Call(Call&& other) noexcept : state_(std::exchange(other.state_, nullptr)), is_started_(other.is_started_) {}

Call& Call::operator=(Call&& other) noexcept {
  std::swap(state_, other.state_);
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
  if (state_ == nullptr || (is_started_ && !state_->released())) {
    auto* fresh = new State;
    if (state_ != nullptr) {
      fresh->timeout = state_->timeout;
      fresh->callback = state_->callback;
      fresh->ask = state_->ask;
      fresh->landing = state_->landing;
    }
    let_go();
    state_ = fresh;
  }
  state_->reset();
  state_->connection = peer.connection();
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

void Call::on_announced(Ask ask) {
  state_->landing = ask ? Landing::kAsked : Landing::kBlocks;
  state_->ask = std::move(ask);
}

void Call::start() noexcept {
  state_->request.seal();
  state_->answer = axon::Call::Answer::kAwaited;
  launch();
}

void Call::tell() noexcept {
  state_->request.seal();
  state_->answer = axon::Call::Answer::kNone;
  launch();
}

void Call::tell(const Outbound& sealed, Owner owner) {
  state_->request.copy(sealed, std::move(owner));
  state_->answer = axon::Call::Answer::kNone;
  launch();
}

void Call::launch() noexcept {
  is_started_ = true;
  state_->connection->start(*state_);
}

bool Call::wait(std::chrono::milliseconds patience) noexcept {
  return state_->connection->wait(*state_, deadline_in(patience));
}

bool Call::finished() const noexcept {
  return state_->finished();
}

bool Call::released() const noexcept {
  return state_->released();
}

void Call::cancel() noexcept {
  state_->connection->cancel(*state_);
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
