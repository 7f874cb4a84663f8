#include "axon/call.hpp"

#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "axon/deadline.hpp"
#include "axon/destinations.hpp"
#include "rpc/core/call.hpp"
#include "rpc/core/connection.hpp"
#include "rpc/core/mailboxes/mail_sender.hpp"

namespace axon::library {

static const Status& moved_away() noexcept {
  static const Status status(ErrorCode::kInvalidArgument, "the call was moved from");
  return status;
}

struct Call::State final : axon::rpc::Call {
  std::shared_ptr<rpc::Connection> connection;  // shared with the runtime, which may be closed first
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

Call::Call(Call&& other) noexcept
    : state_(std::exchange(other.state_, nullptr)),
      is_started_(other.is_started_),
      ask_(std::move(other.ask_)),
      has_new_ask_(other.has_new_ask_) {}

Call& Call::operator=(Call&& other) noexcept {
  std::swap(state_, other.state_);
  std::swap(is_started_, other.is_started_);
  std::swap(ask_, other.ask_);
  std::swap(has_new_ask_, other.has_new_ask_);
  return *this;
}

Call::~Call() {
  let_go();
}

Call::State& Call::state() const noexcept {
  if (state_ != nullptr) return *state_;
  std::fprintf(stderr, "torch_axon: a Call was written or started after it was moved from\n");
  std::abort();
}

void Call::let_go() noexcept {
  if (state_ != nullptr) std::exchange(state_, nullptr)->release();
}

// A state that is not released yet is left to the engine, and replaced by a new one.
void Call::open(const Peer& peer, std::string_view function) {
  if (state_ == nullptr || (is_started_ && !state_->released())) {
    auto* fresh = new State;
    if (state_ != nullptr) {
      fresh->timeout = state_->timeout;
      fresh->callback = state_->callback;
      has_new_ask_ = true;
    }
    let_go();
    state_ = fresh;
  }
  take_ask();
  state_->reset();
  state_->is_mail = false;
  state_->connection = peer.connection();
  state_->request.open(function.size() <= rpc::kLongestName ? function : std::string_view());
  is_started_ = false;
}

Call::Call(const Outbox& outbox) {
  open(outbox);
}

void Call::open(const Outbox& outbox) {
  open(outbox.peer_, outbox.function_);
  state_->is_mail = true;
  rpc::MailSender::write_header(state_->request.bytes());
}

Message Call::request() noexcept {
  return Message(state().request);
}

void Call::set_timeout(std::chrono::milliseconds timeout) noexcept {
  state().timeout = timeout;
}

void Call::on_finished(std::function<void()> callback) {
  state().callback = std::move(callback);
}

void Call::on_announced(Ask ask) {
  ask_ = std::move(ask);
  has_new_ask_ = true;
  if (state_ != nullptr && !is_started_) take_ask();
}

// Only while no part of the state is under way.
void Call::take_ask() {
  if (!std::exchange(has_new_ask_, false)) return;
  state_->ask = ask_;
  state_->destinations = ask_ ? rpc::TensorDestinations::kAsked : rpc::TensorDestinations::kBlocks;
}

void Call::start() noexcept {
  if (state().is_mail) rpc::ValueWriter(state_->request.bytes()).nothing();
  state_->request.seal();
  state_->answer = axon::rpc::Call::Answer::kAwaited;
  launch();
}

void Call::tell() noexcept {
  if (state().is_mail) return start();
  state_->request.seal();
  state_->answer = axon::rpc::Call::Answer::kNone;
  launch();
}

void Call::tell(const rpc::Outbound& sealed, Owner owner) {
  state_->request.copy(sealed, std::move(owner));
  state_->answer = axon::rpc::Call::Answer::kNone;
  launch();
}

void Call::launch() noexcept {
  is_started_ = true;
  if (state_->connection) return state_->connection->start(*state_);
  state_->fail_unstarted(Status(ErrorCode::kInvalidArgument, "the peer to call was moved from"));
}

bool Call::wait(std::chrono::milliseconds timeout) noexcept {
  if (state_ == nullptr || state_->finished()) return true;
  return state_->connection && state_->connection->wait(*state_, deadline_in(timeout));
}

bool Call::finished() const noexcept {
  return state_ == nullptr || state_->finished();
}

bool Call::released() const noexcept {
  return state_ == nullptr || state_->released();
}

void Call::cancel() noexcept {
  if (state_ != nullptr && state_->connection) state_->connection->cancel(*state_);
}

const Status& Call::status() const noexcept {
  return state_ == nullptr ? moved_away() : state_->status();
}

Received Call::reply() noexcept {
  if (state_ != nullptr && state_->has_status()) return Received(state_->reply());
  static rpc::Inbound nothing;
  return Received(nothing);
}

// Format: [message, traceback, …], see Invocation::fail.
rpc::ValueReader Call::failure_values() const noexcept {
  if (status().code() != ErrorCode::kRemote) return rpc::ValueReader({});
  rpc::ValueReader values(state_->reply().values());
  return values.next().kind == rpc::Value::Kind::kArray ? values : rpc::ValueReader({});
}

std::string_view Call::failure() noexcept {
  return failure_values().next().text();
}

std::string_view Call::traceback() noexcept {
  rpc::ValueReader values = failure_values();
  values.next();
  return values.next().text();
}

}  // namespace axon::library
