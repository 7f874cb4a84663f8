// Both ends of the one-sided transfers of a connection: reads and writes of the peer's memory, and the peer's of ours.
// Decision 0048 gives the reasons, docs/wire.md the messages.
//
//   connection->one_sided().start(*transfer);   // any thread; never blocks
//   connection->one_sided().wait(*transfer, deadline);
//
// Owned by its connection. start(), wait() and cancel() are for any thread, the rest for the progress owner.
#pragma once

#include <memory>

#include "rpc/core/one_sided/initiator.hpp"
#include "rpc/core/one_sided/target.hpp"

namespace axon::rpc {

class OneSided {
 public:
  OneSided(Connection& connection, transport::PeerId peer, std::shared_ptr<Exposed> exposed) noexcept
      : connection_(connection), initiator_(connection, peer), target_(connection, peer, std::move(exposed)) {}

  void start(Transfer& transfer) noexcept;
  bool wait(Transfer& transfer, sync::Clock::time_point deadline) noexcept;
  void cancel(Transfer& transfer) noexcept;

  Initiator& initiator() noexcept { return initiator_; }
  const Initiator& initiator() const noexcept { return initiator_; }
  Target& target() noexcept { return target_; }
  void on_message(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept;
  void fail(const Status& reason) noexcept;
  void on_transport_gone() noexcept;
  bool is_idle() const noexcept { return initiator_.is_idle() && target_.is_idle(); }

 private:
  Connection& connection_;
  Initiator initiator_;
  Target target_;
};

}  // namespace axon::rpc
