// A transport whose own allocations are not counted: the loopback replaces UCX in tests and may allocate. Allocations
// of its receiver count.
#pragma once

#include <memory>
#include <utility>

#include "collectives/allocation_counter.hpp"
#include "transport/transport.hpp"

namespace axon::collectives {

class UncountedTransport final : public transport::Transport, private transport::Receiver {
 public:
  explicit UncountedTransport(std::unique_ptr<transport::Transport> inner) : inner_(std::move(inner)) {
    inner_->set_receiver(*this);
  }

  void set_receiver(transport::Receiver& receiver) noexcept override { receiver_ = &receiver; }
  std::span<const std::byte> address() const noexcept override { return inner_->address(); }
  Result<transport::PeerId> add_peer(std::span<const std::byte> address, bool same_host) override {
    return inner_->add_peer(address, same_host);
  }
  Status watch_peer(transport::PeerId peer) noexcept override { return inner_->watch_peer(peer); }
  Result<std::vector<transport::Lane>> lanes(transport::PeerId peer) override { return inner_->lanes(peer); }
  size_t largest_eager() const noexcept override { return inner_->largest_eager(); }
  std::optional<Status> send(transport::PeerId peer, const transport::MessageHeader& header, ConstBuffer payload,
                             transport::Completion& completion) noexcept override {
    const AllocationCounter::Pause pause;
    return inner_->send(peer, header, payload, completion);
  }
  std::optional<Status> send_rendezvous(transport::PeerId peer, const transport::MessageHeader& header,
                                        ConstBuffer payload, transport::Completion& completion) noexcept override {
    const AllocationCounter::Pause pause;
    return inner_->send_rendezvous(peer, header, payload, completion);
  }
  std::optional<Status> fetch(void* rendezvous, Buffer into, transport::Completion& completion) noexcept override {
    const AllocationCounter::Pause pause;
    return inner_->fetch(rendezvous, into, completion);
  }
  void refuse(void* rendezvous, const Status& why) noexcept override {
    const AllocationCounter::Pause pause;
    inner_->refuse(rendezvous, why);
  }
  void drop_peer(transport::PeerId peer) noexcept override { inner_->drop_peer(peer); }
  unsigned progress() noexcept override {
    const AllocationCounter::Pause pause;
    return inner_->progress();
  }
  int event_fd() const noexcept override { return inner_->event_fd(); }
  bool arm() noexcept override { return inner_->arm(); }
  void flush(int timeout_ms) noexcept override { inner_->flush(timeout_ms); }

 private:
  void on_message(const transport::MessageHeader& header, const transport::Payload& payload) noexcept override {
    const AllocationCounter::Resume resume;
    receiver_->on_message(header, payload);
  }
  void on_peer_lost(transport::PeerId peer, Status reason) noexcept override {
    receiver_->on_peer_lost(peer, std::move(reason));
  }

  std::unique_ptr<transport::Transport> inner_;
  transport::Receiver* receiver_ = nullptr;
};

}  // namespace axon::collectives
