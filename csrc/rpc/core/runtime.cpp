#include "rpc/core/runtime.hpp"

#include <utility>

#include "rpc/core/drive_until.hpp"

namespace axon::rpc {

Result<std::unique_ptr<Runtime>> Runtime::open(RuntimeOptions options, engine::Engine& engine) {
  if (options.name.empty() || options.name.size() > EndpointInfo::kMostNameBytes) {
    return Status(ErrorCode::kInvalidArgument, "a runtime's name is " + std::to_string(options.name.size()) +
                                                   " bytes long; allowed: 1 to " +
                                                   std::to_string(EndpointInfo::kMostNameBytes));
  }
  auto core = std::make_shared<RuntimeCore>(engine, std::move(options));
  AXON_TRY(core->open());
  return std::unique_ptr<Runtime>(new Runtime(std::move(core)));
}

// The host is resolved without the lock, because signal handlers that run in the meantime may use the runtime.
Result<uint16_t> Runtime::listen(const SocketAddress& socket_address, const Secret& secret) {
  {
    const std::lock_guard lock(mutex_);
    AXON_TRY(may_listen_held());
  }
  Result<std::unique_ptr<Listener>> opened = open_listener(socket_address, secret);
  if (!opened.ok()) return std::move(opened.status());
  const std::lock_guard lock(mutex_);
  AXON_TRY(may_listen_held());
  return install_held(socket_address, std::move(opened).value());
}

Status Runtime::may_listen_held() const {
  if (core_->engine().is_forked()) return engine::Engine::forked();
  if (closed_) return {ErrorCode::kAborted, "the runtime '" + name() + "' is closed"};
  if (!listener_) return Status();
  return {ErrorCode::kInvalidArgument,
          "the runtime '" + name() + "' already listens on port " + std::to_string(listener_->port())};
}

Result<std::unique_ptr<Listener>> Runtime::open_listener(const SocketAddress& socket_address, const Secret& secret) {
  return Listener::open(socket_address, secret, incarnation_, {},
                        [this](Connected connected) { return on_accept(std::move(connected)); });
}

uint16_t Runtime::install_held(const SocketAddress& socket_address, std::unique_ptr<Listener> listener) {
  listener_ = std::move(listener);
  listener_address_.emplace(
      ListenerAddress{.host = socket_address.host, .port = listener_->port(), .secret = listener_->address_key()});
  return listener_->port();
}

static bool is_wildcard(const std::string& host) noexcept {
  return host == "0.0.0.0" || host == "::";
}

Result<std::vector<std::byte>> Runtime::address(const std::string& host) {
  const std::lock_guard lock(mutex_);
  if (!listener_address_) {
    const SocketAddress own{.host = "127.0.0.1", .port = 0};
    AXON_TRY(may_listen_held());
    Result<std::unique_ptr<Listener>> opened = open_listener(own, Secret::random());
    if (!opened.ok()) return std::move(opened.status());
    install_held(own, std::move(opened).value());
  }
  ListenerAddress found = *listener_address_;
  if (!host.empty()) found.host = host;
  if (is_wildcard(found.host)) {
    return Status(ErrorCode::kInvalidArgument, "the runtime '" + name() + "' listens on host " + found.host +
                                                   ", an address that means another host elsewhere; listen on a host "
                                                   "that peers can reach, or name one to address_at()");
  }
  return found.encode();
}

std::optional<Listener::Counts> Runtime::counts() {
  const std::lock_guard lock(mutex_);
  return listener_ ? std::optional(listener_->counts()) : std::nullopt;
}

EndpointInfo Runtime::own_info(const engine::PeerAddress& own) const {
  const std::vector<uint8_t> blob = own.encode();
  const auto bytes = std::as_bytes(std::span(blob));
  return {.name = name(), .incarnation = incarnation_, .key = own.key, .address = {bytes.begin(), bytes.end()}};
}

Result<std::shared_ptr<Connection>> Runtime::admit(Connected connected, uint64_t own_key) {
  const auto& blob = connected.peer.address;
  Result<engine::PeerAddress> peer_address =
      engine::PeerAddress::decode({reinterpret_cast<const uint8_t*>(blob.data()), blob.size()});
  if (!peer_address.ok()) return std::move(peer_address.status());
  return core_->admit({.name = connected.peer.name,
                       .incarnation = connected.peer.incarnation,
                       .address = std::move(peer_address).value(),
                       .peer_key = connected.peer.key,
                       .own_key = own_key,
                       .socket = std::move(connected.socket)});
}

// Runs on the listener's thread.
Result<EndpointInfo> Runtime::on_accept(Connected connected) {
  const engine::OwnAddress own = core_->engine().make_address();
  Result<std::shared_ptr<Connection>> admitted = admit(std::move(connected), own.address().key);
  if (!admitted.ok()) return std::move(admitted.status());
  return own_info(own.address());
}

Result<std::shared_ptr<Connection>> Runtime::connect(std::span<const std::byte> address, Clock::time_point deadline) {
  Result<ListenerAddress> decoded = ListenerAddress::decode(address);
  if (!decoded.ok()) return std::move(decoded.status());
  const ListenerAddress& to = decoded.value();
  const auto key_of = [&](const ListenerIdentity& /*listener*/) { return to.secret; };
  return connect({.host = to.host, .port = to.port}, to.secret, key_of, deadline);
}

Result<std::shared_ptr<Connection>> Runtime::connect(const SocketAddress& socket_address, const Secret& secret,
                                                     Clock::time_point deadline) {
  const auto key_of = [&](const ListenerIdentity& listener) { return address_key_of(secret, listener.place); };
  return connect(socket_address, secret, key_of, deadline);
}

Result<std::shared_ptr<Connection>> Runtime::connect(const SocketAddress& socket_address, const Secret& secret,
                                                     const KeyOf& key_of, Clock::time_point deadline) {
  if (core_->engine().is_forked()) return engine::Engine::forked();
  const engine::OwnAddress own = core_->engine().make_address();
  Result<FoundListener> found = FoundListener::find(socket_address, secret, own_info(own.address()), deadline);
  if (!found.ok()) return std::move(found.status());
  const ListenerIdentity& listener = found.value().identity();
  return opened_.find_or_open({.incarnation = listener.incarnation, .address_key = key_of(listener)}, deadline,
                              [&]() -> Result<std::shared_ptr<Connection>> {
                                Result<Connected> connected = std::move(found).value().connect(deadline);
                                if (!connected.ok()) return std::move(connected.status());
                                return admit(std::move(connected).value(), own.address().key);
                              });
}

bool Runtime::serve(const sync::atomic<bool>& stop, Clock::time_point deadline, Clock::duration spin_budget) {
  return core_->engine().wait(stop, deadline, spin_budget);
}

void Runtime::wake() {
  core_->engine().nudge();
}

bool Runtime::await_idle(Clock::time_point deadline) {
  if (core_->engine().is_forked()) return true;
  core_->refuse_new();
  return drive_until(core_->engine(), [&] { return core_->is_idle(); }, deadline);
}

bool Runtime::drain(Clock::time_point deadline) {
  const bool idle = await_idle(deadline);
  close();
  return idle;
}

void Runtime::close() noexcept {
  std::unique_ptr<Listener> listener;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    listener = std::move(listener_);
  }
  listener.reset();  // waits for its thread, which may be in on_accept()
  if (!core_->engine().is_forked()) core_->close();
}

}  // namespace axon::rpc
