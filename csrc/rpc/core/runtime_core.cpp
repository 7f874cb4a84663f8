#include "rpc/core/runtime_core.hpp"

#include <algorithm>
#include <utility>

#include "base/coarse_clock.hpp"
#include "base/log.hpp"
#include "rpc/core/values.hpp"

namespace axon::rpc {

namespace {

// Calls a user's callback once, after the token is released.
class Notice final : public engine::Submission {
 public:
  explicit Notice(std::function<void()> tell) : tell_(std::move(tell)) {}

 private:
  void begin() noexcept override {}
  void complete() noexcept override {
    tell_();
    delete this;
  }

  const std::function<void()> tell_;
};

}  // namespace

// Limits the text of a function's error in the log.
static constexpr size_t kLongestReport = 1024;

RuntimeCore::RuntimeCore(engine::Engine& engine, RuntimeOptions options)
    : engine_(engine),
      options_(std::move(options)),
      exposed_(std::make_shared<Exposed>(engine)),
      limits_{.max_message_num_bytes = options_.max_message_num_bytes,
              .max_early_payload_frames = kMostTensors,
              .max_early_num_bytes = options_.max_early_num_bytes,
              .num_early_bytes = &num_early_bytes_,
              .accepts_exposed = options_.accepts_exposed} {}

// A transfer from a lost peer may never end, and may still touch its memory, so that memory is leaked.
RuntimeCore::~RuntimeCore() {
  [[maybe_unused]] const auto untaken =
      exposed_->notifications.take(nullptr);  // they refer to connections, and so here
  for (std::unique_ptr<Invocation>& invocation : invocations_) {
    if (!invocation->arguments_.at_rest() || !invocation->answer.at_rest()) {
      [[maybe_unused]] Invocation* const leaked = invocation.release();
    }
  }
}

Status RuntimeCore::open() {
  AXON_TRY(engine_.enter(*this));
  engine_.exclusively([&] { self_ = shared_from_this(); });
  return Status();
}

Status RuntimeCore::add(std::string name, Handler handler, Handler ask) {
  if (name.empty() || name.size() > kLongestName) {
    return {ErrorCode::kInvalidArgument, "a function's name is " + std::to_string(name.size()) +
                                             " bytes long; allowed: 1 to " + std::to_string(kLongestName)};
  }
  return engine_.exclusively([&]() -> Status {
    const bool asks = static_cast<bool>(ask);
    const auto [place, is_new] = functions_.try_emplace(std::move(name), Function{std::move(handler), std::move(ask)});
    num_asking_ += is_new && asks ? 1 : 0;
    if (is_new) return Status();
    return {ErrorCode::kInvalidArgument, "function '" + place->first + "' already exists"};
  });
}

void RuntimeCore::set_fallback(Handler handler) {
  engine_.exclusively([&] { fallback_.call = std::move(handler); });
}

void RuntimeCore::set_on_cancelled(std::function<void(uint64_t)> on_cancelled) {
  engine_.exclusively([&] { on_cancelled_ = std::move(on_cancelled); });
}

void RuntimeCore::set_on_connected(std::function<void(Connection&)> on_connected) {
  engine_.exclusively([&] { on_connected_ = std::move(on_connected); });
}

void RuntimeCore::set_on_lost(std::function<void(Connection&)> on_lost) {
  engine_.exclusively([&] { on_lost_ = std::move(on_lost); });
}

Result<std::shared_ptr<Connection>> RuntimeCore::admit(Identity identity) {
  return engine_.exclusively([&]() -> Result<std::shared_ptr<Connection>> {
    if (refuses_) return Status(ErrorCode::kAborted, "the runtime '" + options_.name + "' is closed");
    forget_ended();
    if (connections_.size() >= options_.max_connections) {
      return Status(ErrorCode::kResourceExhausted, "the runtime '" + options_.name + "' has " +
                                                       std::to_string(connections_.size()) +
                                                       " connections, the limit (max_connections)");
    }
    AXON_TRY(engine_.peers().check_room(0));
    Result<transport::PeerId> peer = engine_.meet(identity.address);
    if (!peer.ok()) return std::move(peer.status());
    if (engine_.messenger().is_lost(peer.value())) {
      return Status(ErrorCode::kPeerLost, "the process of '" + identity.name + "' is gone");
    }
    const uint64_t key = identity.own_key;
    auto connection = std::make_shared<Connection>(*this, engine_, std::move(identity), peer.value());
    connections_.push_back(connection);
    if (on_connected_) hand_over(*new Notice([tell = on_connected_, connection] { tell(*connection); }));
    if (!engine_.messenger().attach(key, *connection)) {
      connection->fail(Status(
          ErrorCode::kResourceExhausted,
          "'" + connection->identity().name + "' sent more messages before its handshake ended than can be stored"));
      return connection->failure_.clone();
    }
    return connection;
  });
}

std::vector<std::shared_ptr<Connection>> RuntimeCore::connections() {
  return engine_.exclusively([&] { return connections_; });
}

size_t RuntimeCore::num_connections() {
  return engine_.exclusively([&]() -> size_t {
    return static_cast<size_t>(
        std::ranges::count_if(connections_, [](const auto& connection) { return connection->failure_.ok(); }));
  });
}

// Transfers with a lost peer may never end.
bool RuntimeCore::is_idle() {
  return engine_.exclusively([&] {
    return std::ranges::all_of(connections_, [&](const auto& connection) {
      return !connection->failure_.ok() || is_through_with(*connection);
    });
  });
}

bool RuntimeCore::is_through_with(const Connection& connection) noexcept {
  for (Invocation* each = parked_.front(); each != nullptr; each = parked_.next(*each)) {
    if (each->connection_.get() == &connection) return false;
  }
  return connection.is_idle();
}

Result<std::shared_ptr<Region>> RuntimeCore::expose(RegionSpecification specification, Owner owner) {
  if (engine_.is_forked()) return engine::Engine::forked();
  return engine_.exclusively([&]() -> Result<std::shared_ptr<Region>> {
    if (refuses_) return Status(ErrorCode::kAborted, "the runtime '" + options_.name + "' is closed");
    return exposed_->regions.expose(std::move(specification), std::move(owner));
  });
}

std::vector<std::string> RuntimeCore::holders(const Region& region) {
  if (engine_.is_forked()) return {};
  return engine_.exclusively([&] {
    std::vector<std::string> names = Regions::readers(region);
    for (const auto& connection : connections_) {
      const std::string& name = connection->identity().name;
      if (!connection->one_sided().target().moves(region)) continue;
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
    return names;
  });
}

void RuntimeCore::revoke(Region& region) noexcept {
  if (engine_.is_forked()) return;
  engine_.exclusively([&] {
    if (region.is_revoked()) return;
    exposed_->regions.revoke(region);
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (connections_[i]->failure_.ok()) connections_[i]->one_sided().target().revoke(region);
    }
    exposed_->regions.release_rested();
  });
}

bool RuntimeCore::is_at_rest(const Region& region) {
  return engine_.is_forked() || engine_.exclusively([&] { return region.at_rest(); });
}

void RuntimeCore::end_exposing() noexcept {
  exposed_->regions.revoke_all();
  exposed_->notifications.close();
  engine_.nudge();
}

void RuntimeCore::refuse_new() noexcept {
  engine_.exclusively([&] {
    refuses_ = true;
    end_exposing();
    for (size_t i = 0; i < connections_.size(); ++i) {
      if (connections_[i]->failure_.ok()) connections_[i]->one_sided().target().close();
    }
    exposed_->regions.release_rested();
  });
}

void RuntimeCore::close() noexcept {
  engine_.exclusively([&] {
    if (std::exchange(closed_, true)) return;
    refuses_ = true;
    const Status reason(ErrorCode::kAborted, "the runtime '" + options_.name + "' is closed");
    end_exposing();
    for (size_t i = 0; i < connections_.size(); ++i) connections_[i]->end(reason);
    exposed_->regions.release_rested();
  });
  engine_.wake();
}

bool RuntimeCore::tick(Clock::time_point now) noexcept {
  for (size_t i = 0; i < connections_.size(); ++i) connections_[i]->tick(now);
  forget_ended();
  look_after_parked();
  exposed_->regions.look_after_lost();
  if (!closed_ || !connections_.empty() || !parked_.empty() || !exposed_->regions.at_rest() ||
      !exposed_->ended_grants.is_empty()) {
    return true;
  }
  has_left_ = true;
  const std::shared_ptr<RuntimeCore> may_go = take_self_if_unused();
  return false;
}

bool RuntimeCore::has_running() const noexcept {
  return std::ranges::any_of(connections_, [](const auto& connection) {
    return connection->num_calls_ != 0 || connection->is_closing() || connection->one_sided_.initiator().has_running();
  });
}

void RuntimeCore::on_peer_lost(transport::PeerId peer, const std::string& reason) noexcept {
  for (size_t i = 0; i < connections_.size(); ++i) {
    Connection& connection = *connections_[i];
    if (connection.peer_ != peer) continue;
    connection.fail(Status(ErrorCode::kPeerLost, "'" + connection.identity().name + "' is gone: " + reason));
  }
  exposed_->ended_grants.on_peer_lost(peer);
  exposed_->regions.on_peer_lost(peer);
}

void RuntimeCore::on_shut_down() noexcept {
  refuses_ = closed_ = true;
  end_exposing();
  fail_all(Status(ErrorCode::kAborted, "torch_axon is shutting down in this process"));
}

void RuntimeCore::on_transport_gone() noexcept {
  for (const auto& connection : connections_) connection->on_transport_gone();
  exposed_->ended_grants.on_transport_gone();
  while (Invocation* invocation = parked_.pop_front()) {
    invocation->arguments_.come_to_rest();
    invocation->answer.come_to_rest();
    recycle(*invocation);
  }
  has_left_ = true;
  const std::shared_ptr<RuntimeCore> may_go = take_self_if_unused();
}

void RuntimeCore::fail_all(const Status& reason) noexcept {
  for (size_t i = 0; i < connections_.size(); ++i) connections_[i]->fail(reason);
}

Invocation& RuntimeCore::take_invocation() noexcept {
  if (Invocation* kept = free_.pop_front()) return *kept;
  invocations_.push_back(std::make_unique<Invocation>());
  invocations_.back()->core_ = this;
  return *invocations_.back();
}

void RuntimeCore::recycle(Invocation& invocation) noexcept {
  invocation.arguments_.abandon();
  if (!invocation.arguments_.at_rest() || !invocation.answer.at_rest()) {
    if (!invocation.linked()) parked_.push_back(invocation);
    return;
  }
  invocation.unlink();
  if (invocation.answer.has_owners() ||
      invocation.arguments_.has_owners()) {  // its owners must not be released while the token is held
    invocation.phase_ = Invocation::Phase::kCleared;
    return engine_.post(invocation);
  }
  invocation.arguments_.give_back();
  invocation.phase_ = Invocation::Phase::kArriving;
  invocation.has_header_frame_ = false;
  invocation.refusal_.clear();
  invocation.cancelled_.store(false, std::memory_order_relaxed);
  invocation.gives_up_at_ = Clock::time_point::max();
  if (!invocation.connection_->failure_.ok()) invocation.connection_.reset();
  free_.push_back(invocation);
  if (!std::exchange(invocation.is_held_, false)) return;
  --num_held_;
  const std::shared_ptr<RuntimeCore> may_go = take_self_if_unused();
}

void RuntimeCore::hold(Invocation& invocation) noexcept {
  if (!std::exchange(invocation.is_held_, true)) ++num_held_;
}

std::shared_ptr<RuntimeCore> RuntimeCore::take_self_if_unused() noexcept {
  return has_left_ && num_held_ == 0 ? std::move(self_) : nullptr;
}

const Function* RuntimeCore::find(std::string_view name) noexcept {
  if (latest_called_ != nullptr && latest_called_->first == name) return &latest_called_->second;
  const auto found = functions_.find(name);
  if (found == functions_.end()) return nullptr;
  latest_called_ = &*found;
  return &found->second;
}

// The tensors are announced: the function may decide where they go.
void RuntimeCore::ask(Invocation& invocation) noexcept {
  if (num_asking_ == 0 || refuses_ || invocation.comes_late_) return;
  const Function* const found = find(invocation.function());
  if (found == nullptr || !found->ask) return;
  invocation.arguments_.set_destinations(TensorDestinations::kAsked);
  invocation.handler_ = found;
  invocation.phase_ = Invocation::Phase::kAsking;
  hold(invocation);
  hand_over(invocation);
}

// The call is complete, so that its function can run.
void RuntimeCore::call(Invocation& invocation) noexcept {
  if (refuses_) return invocation.fail_here("ConnectionError", "the runtime '" + options_.name + "' is closed");
  // One-way callers would not learn the error, and their calls may concern other calls under way.
  if (invocation.comes_late_ && invocation.wants_answer()) {
    return invocation.fail_here("ConnectionError", "the runtime '" + options_.name + "' is closing the connection");
  }
  if (invocation.is_late()) return invocation.fail_as_given_up();
  const Function* const found = find(invocation.function());
  invocation.handler_ = found != nullptr ? found : &fallback_;
  if (!invocation.handler_->call) {
    const std::string why =
        "the runtime '" + options_.name + "' has no function '" + std::string(invocation.function()) + "'";
    if (!invocation.wants_answer()) report_unheard(invocation, "LookupError", why);
    return invocation.fail_here("LookupError", why);
  }
  // One-way callers would not learn the error. Besides, one-way calls end the waits of mailboxes and generators.
  if (invocation.wants_answer() && num_running_ >= options_.max_running_calls) {
    return invocation.fail_here("BufferError", "the runtime '" + options_.name + "' has " +
                                                   std::to_string(num_running_) +
                                                   " unanswered calls, the limit (max_running_calls)");
  }
  ++num_running_;
  invocation.serial_ = ++num_invoked_;
  invocation.phase_ = Invocation::Phase::kCalled;
  if (hands_over_in_order_) invocation.handed_over_at_ = coarse_now();
  hold(invocation);
  hand_over(invocation);
}

// Posted submissions are completed by the thread that drove; completions of two threads may overtake each other.
void RuntimeCore::hand_over(engine::Submission& submission) noexcept {
  if (!hands_over_in_order_) return engine_.post(submission);
  submission.complete();
  engine_.nudge();
}

void RuntimeCore::report_unheard(const Invocation& invocation, std::string_view class_name,
                                 std::string_view message) noexcept {
  const bool is_own = invocation.function().starts_with(kOwnNames);  // runtimes use these while they close
  const std::optional<uint64_t> num_held_back = is_own ? std::nullopt : unheard_.pass();
  if (!num_held_back) return;
  std::string text = "runtime '" + options_.name + "': one-way call of '" + invocation.connection()->identity().name +
                     "' to '" + std::string(invocation.function()) + "' failed: " + std::string(class_name) + ": " +
                     std::string(message.substr(0, kLongestReport));
  if (*num_held_back > 0) text += " (" + std::to_string(*num_held_back) + " earlier failures were not logged)";
  log::warn(text);
}

void RuntimeCore::on_cancelled(Invocation& invocation) noexcept {
  if (invocation.phase_ == Invocation::Phase::kArriving) {
    invocation.arguments_.abandon();
    return invocation.fail_here("RuntimeError", "cancelled before it arrived completely");
  }
  if (invocation.phase_ == Invocation::Phase::kAsking) invocation.refusal_ = "cancelled before it arrived completely";
  if (invocation.phase_ != Invocation::Phase::kCalled || !invocation.wants_answer()) return;
  invocation.cancelled_.store(true, std::memory_order_relaxed);
  if (!on_cancelled_) return;
  hand_over(*new Notice([tell = on_cancelled_, serial = invocation.serial_] { tell(serial); }));
}

void RuntimeCore::on_lost(Connection& connection) noexcept {
  forget_in_free(connection);
  if (!on_lost_) return;
  hand_over(*new Notice([tell = on_lost_, lost = connection.shared_from_this()] { tell(*lost); }));
}

void RuntimeCore::on_caller_lost(Invocation& invocation) noexcept {
  if (invocation.phase_ == Invocation::Phase::kArriving) return recycle(invocation);
  if (invocation.start_flag_waiter_.linked()) {
    invocation.start_flag_waiter_.unlink();
    return invocation.begin();
  }
  on_cancelled(invocation);
}

void RuntimeCore::forget_ended() noexcept {
  std::erase_if(connections_, [](const std::shared_ptr<Connection>& connection) {
    const bool has_ended = !connection->failure_.ok() && connection->is_idle();
    if (has_ended) connection->give_back();
    return has_ended;
  });
}

// Free invocations have kept the connection for the next call.
void RuntimeCore::forget_in_free(const Connection& connection) noexcept {
  for (Invocation* invocation = free_.front(); invocation != nullptr; invocation = free_.next(*invocation)) {
    if (invocation->connection_.get() == &connection) invocation->connection_.reset();
  }
}

void RuntimeCore::look_after_parked() noexcept {
  for (Invocation* invocation = parked_.front(); invocation != nullptr;) {
    Invocation* next = parked_.next(*invocation);
    if (invocation->arguments_.at_rest() && invocation->answer.at_rest()) recycle(*invocation);
    invocation = next;
  }
}

}  // namespace axon::rpc
