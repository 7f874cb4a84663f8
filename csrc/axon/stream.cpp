#include "axon/stream.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "axon/call.hpp"
#include "axon/deadline.hpp"
#include "axon/gate.hpp"
#include "rpc/core/generators/generators.hpp"
#include "rpc/core/inbound.hpp"

namespace axon::library {

static constexpr std::chrono::seconds kLongestAsk{10};

// Returns a number that is unique in this process, although a peer only needs it to be unique per connection.
static int64_t new_number() noexcept {
  static sync::atomic<int64_t> num_streams{0};
  return num_streams.fetch_add(1, std::memory_order_relaxed);
}

static void write_number(Call& call, int64_t number) {
  Message request = call.request();
  request.array(2);
  request.array(1);
  request.integer(number);
  request.nothing();
}

struct Stream::State {
  State(const Peer& of, std::string_view name, StreamOptions chosen)
      : peer(of), function(name), options(std::move(chosen)), opening(of, name) {
    opening.set_timeout(options.timeout);
    if (options.ask) {
      asks_where = [gate = gate, ask = options.ask](Announced& coming) {
        const std::shared_ptr<Gate> kept = gate;
        const Gate::Pass pass(*kept);
        pass.is_open() ? ask(coming) : coming.refuse("the stream was stopped");
      };
    }
    if (options.ahead > 0) return;
    finish(Status(ErrorCode::kInvalidArgument, "Stream: ahead is 0; allowed: 1 or more"));
  }
  ~State() {
    finish(Status());
    (void)gate->close(sync::Clock::now() + kLongestAsk);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  bool wait(Call& call, sync::Clock::time_point deadline) noexcept { return call.wait(left_until(deadline)); }
  bool begin(sync::Clock::time_point deadline);
  bool next(sync::Clock::time_point deadline);
  void ask();
  bool take(size_t index);
  bool find_next() noexcept;
  void fail(Call& call);
  void finish(Status with);
  void stop() noexcept;

  struct Arrived {
    int64_t count;
    size_t index;
  };

  Peer peer;
  const std::string function;
  const StreamOptions options;
  const int64_t number = new_number();
  const std::shared_ptr<Gate> gate = std::make_shared<Gate>();  // shared with calls under way
  Ask asks_where;
  Call opening;
  std::vector<Call> calls;       // one more than are requested ahead: that of the value in use
  std::vector<size_t> idle;      // of these
  std::deque<size_t> asked;      // the oldest first
  std::vector<Arrived> arrived;  // before their turn
  std::optional<size_t> used;
  int64_t num_used = 0;
  bool has_named = false;
  bool is_started = false;
  bool has_begun = false;
  bool is_stopped = false;  // no more values are requested
  bool is_finished = false;
  Status status;
  std::string failure;
  std::string traceback;
};

// Returns whether the stream is open; only then can the peer understand requests for values.
bool Stream::State::begin(sync::Clock::time_point deadline) {
  if (!wait(opening, deadline)) return false;
  if (!opening.status().ok()) {
    fail(opening);
    return false;
  }
  const rpc::Value answer = opening.reply().values().next();
  if (answer.kind != rpc::Value::Kind::kInteger || answer.integer != number) {
    finish(Status(ErrorCode::kInvalidArgument,
                  "Stream: '" + function + "' of '" + peer.name() + "' is not a generator function"));
    return false;
  }
  has_begun = true;
  for (size_t index = 0; index <= options.ahead; ++index) {
    Call& call = calls.emplace_back(peer, rpc::kNext);
    call.set_timeout(options.timeout);
    call.on_announced(asks_where);
    idle.push_back(index);
  }
  return true;
}

bool Stream::State::next(sync::Clock::time_point deadline) {
  if (is_finished || !is_started || (!has_begun && !begin(deadline))) return false;
  if (used) idle.push_back(*std::exchange(used, std::nullopt));
  ask();
  while (!find_next()) {
    if (asked.empty()) {
      finish(Status());
      return false;
    }
    const size_t eldest = asked.front();
    if (!wait(calls[eldest], deadline)) return false;
    asked.pop_front();
    if (!take(eldest)) return false;
  }
  ask();
  return true;
}

void Stream::State::ask() {
  while (!is_stopped && asked.size() + arrived.size() < options.ahead) {
    const size_t index = idle.back();
    idle.pop_back();
    calls[index].open(peer, rpc::kNext);
    write_number(calls[index], number);
    calls[index].start();
    asked.push_back(index);
  }
}

// Format: [count, value], or nil at the end; values made earlier may still be on their way then.
bool Stream::State::take(size_t index) {
  Call& call = calls[index];
  if (!call.status().ok()) {
    fail(call);
    return false;
  }
  rpc::ValueReader values = call.reply().values();
  const rpc::Value answer = values.next();
  const bool is_value = answer.kind == rpc::Value::Kind::kArray && answer.count == 2;
  if (is_value) {
    arrived.push_back({values.next().integer, index});
    return true;
  }
  idle.push_back(index);
  stop();
  return true;
}

bool Stream::State::find_next() noexcept {
  const auto found = std::ranges::find(arrived, num_used, &Arrived::count);
  if (found == arrived.end()) return false;
  used = found->index;
  ++num_used;
  arrived.erase(found);
  return true;
}

void Stream::State::fail(Call& call) {
  failure = call.failure();
  traceback = call.traceback();
  finish(call.status().clone());
}

void Stream::State::finish(Status with) {
  stop();
  is_finished = true;
  status = std::move(with);
  for (const size_t index : asked) calls[index].cancel();
  asked.clear();
  arrived.clear();
}

// The peer is told only if the stream has certainly been opened there.
void Stream::State::stop() noexcept {
  if (std::exchange(is_stopped, true) || !is_started) return;
  const bool has_failed = opening.finished() && !opening.status().ok();
  if (has_failed && opening.status().code() != ErrorCode::kTimeout) return;
  Call message(peer, rpc::kStop);
  write_number(message, number);
  message.tell();
}

Stream::Stream(const Peer& peer, std::string_view function, StreamOptions options)
    : state_(std::make_unique<State>(peer, function, std::move(options))) {}
Stream::Stream(Stream&&) noexcept = default;
Stream& Stream::operator=(Stream&&) noexcept = default;
Stream::~Stream() = default;

Stream::State& Stream::state() const noexcept {
  if (state_) return *state_;
  std::fprintf(stderr, "torch_axon: a Stream was written or started after it was moved from\n");
  std::abort();
}

Message Stream::arguments(size_t num_positional) {
  Message request = state().opening.request();
  request.array(2);
  request.array(num_positional);
  return request;
}

// The number of the stream is one of the named arguments.
Message Stream::named(size_t num_named) {
  Message request = state().opening.request();
  request.map(num_named + 1);
  request.text(rpc::kNumber);
  request.integer(state_->number);
  state_->has_named = true;
  return request;
}

void Stream::start() {
  if (state().is_finished) return;
  if (!state_->has_named) named(0);
  state_->opening.start();
  state_->is_started = true;
}

bool Stream::next(std::chrono::milliseconds timeout) {
  return state_ && state_->next(deadline_in(timeout));
}

Received Stream::received() noexcept {
  if (state_ && state_->used) return state_->calls[*state_->used].reply();
  static rpc::Inbound nothing;
  return Received(nothing);
}

rpc::ValueReader Stream::value() const noexcept {
  if (!state_ || !state_->used) return rpc::ValueReader({});
  rpc::ValueReader values = state_->calls[*state_->used].reply().values();
  values.next();
  values.next();
  return values;
}

bool Stream::finished() const noexcept {
  return !state_ || state_->is_finished;
}

const Status& Stream::status() const noexcept {
  static const Status moved_from(ErrorCode::kInvalidArgument, "the stream was moved from");
  return state_ ? state_->status : moved_from;
}

std::string_view Stream::failure() const noexcept {
  return state_ ? std::string_view(state_->failure) : std::string_view();
}

std::string_view Stream::traceback() const noexcept {
  return state_ ? std::string_view(state_->traceback) : std::string_view();
}

void Stream::stop() noexcept {
  if (!finished()) state_->finish(Status());
}

}  // namespace axon::library
