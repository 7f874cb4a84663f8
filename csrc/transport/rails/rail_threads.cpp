#include "transport/rails/rail_threads.hpp"

#include <utility>

#include "transport/rails/rail_route.hpp"

namespace axon::transport {

Result<std::unique_ptr<RailThreads>> RailThreads::open(size_t num_rails, const RailOptions& options, uint64_t name) {
  std::unique_ptr<RailThreads> threads(new RailThreads);
  AXON_TRY(threads->events_.open());
  if (options.port == nullptr) {
    Result<RailAddress> address = RailAddress::of_devices(options.devices, name);
    if (!address.ok()) return std::move(address.status());
    auto port = RailHandshakes::open(std::move(address).value());
    if (!port.ok()) return std::move(port.status());
    threads->own_port_ = std::move(port).value();
  }
  for (size_t rail = 0; rail < num_rails; ++rail) {
    threads->readers_.emplace_back(threads->incoming_, threads->events_);
    threads->writers_.emplace_back(rail, options.compression, threads->outgoing_, threads->events_);
  }
  threads->handshakes_ = options.port != nullptr ? options.port : threads->own_port_.get();
  return threads;
}

// The thread of the handshakes gives connections to the others, so it stops doing that first.
RailThreads::~RailThreads() {
  if (handshakes_ != nullptr) handshakes_->serve(RailUse::kStripes, nullptr);
}

Status RailThreads::start() {
  for (RailReader& reader : readers_) AXON_TRY(reader.start());
  for (RailWriter& writer : writers_) AXON_TRY(writer.start());
  handshakes_->serve(RailUse::kStripes, this);  // not before: the thread of a shared port may run already
  return handshakes_->start();
}

void RailThreads::send_waiting() noexcept {
  for (RailWriter& writer : writers_) writer.send_waiting();
}

void RailThreads::drop(PeerId peer, uint64_t name) {
  for (RailReader& reader : readers_) reader.drop(name);
  drop_own(peer);
}

void RailThreads::drop_own(PeerId peer) {
  handshakes_->cancel(RailUse::kStripes, peer);
  for (RailWriter& writer : writers_) writer.drop(peer);
}

void RailThreads::admit(uint64_t name) {
  for (RailReader& reader : readers_) reader.admit(name);
}

void RailThreads::on_connected(const RailRequest& request, FileDescriptor socket, const Digest& key) noexcept {
  events_.push({.kind = RailEvent::Kind::kConnected,
                .peer = request.peer,
                .rail = request.rail,
                .route = route_of(socket),
                .why = {}});
  writers_[request.rail].add(std::move(socket), request.peer, key);
}

void RailThreads::on_not_connected(const RailRequest& request, Status why) noexcept {
  events_.push(
      {.kind = RailEvent::Kind::kNotOpened, .peer = request.peer, .rail = request.rail, .why = std::move(why)});
}

void RailThreads::on_accepted(uint64_t name, uint32_t rail, FileDescriptor socket, const Digest& key) noexcept {
  readers_[rail % readers_.size()].add(std::move(socket), name, key);
}

void RailThreads::on_stranger(const char* what) noexcept {
  events_.push({.kind = RailEvent::Kind::kRefused, .why = Status(ErrorCode::kUnauthenticated, what)});
}

}  // namespace axon::transport
