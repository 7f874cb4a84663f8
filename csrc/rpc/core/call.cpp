#include "rpc/core/call.hpp"

#include <utility>

#include "rpc/core/connection.hpp"

namespace axon::rpc {

void Call::reset() noexcept {
  request.clear();
  reply_.let_go();
  number_ = 0;
  mail_sender_ = nullptr;
  turn_ = -1;
  begun_ = at_peer_ = answered_ = is_exposing_ = failed_there_ = given_up_ = is_final_ = resting_ = false;
  status_ = Status();
  has_status_.store(false, std::memory_order_relaxed);
  finished_.store(false, std::memory_order_relaxed);
  released_flag_.store(false, std::memory_order_relaxed);
}

void Call::fail_unstarted(Status status) noexcept {
  retain();
  status_ = std::move(status);
  resting_ = true;
  complete();
}

void Call::begin() noexcept {
  connection_->begin(*this);
}

void Call::complete() noexcept {
  const bool resting = resting_;  // before finished(), after which another thread may set it
  if (!finished()) {
    has_status_.store(true, std::memory_order_release);
    on_finished();
    finished_.store(true);
  }
  if (!resting) return;
  on_released();
  released_flag_.store(true, std::memory_order_release);
  release();
}

void Call::StartFlagWaiter::on_flag_set() noexcept {
  call.connection_->open(call);
}

void Call::DestinationRequest::complete() noexcept {
  call.on_announced();
  call.is_asking_.store(false, std::memory_order_release);
  call.release();
}

void Call::on_announced(Inbound&) noexcept {
  if (destinations == TensorDestinations::kBlocks || failed_there_) return;
  reply_.set_destinations(destinations);
  is_asking_.store(true, std::memory_order_relaxed);
  retain();
  connection_->engine().post(destination_request_);
}

// The answer may overtake the copy of the exposed tensors, which the peer has only enqueued on its stream.
void Call::on_complete(Inbound&) noexcept {
  is_exposing_ = still_exposes();
  if (!is_exposing_) finish_answered();
}

void Call::finish_answered() noexcept {
  connection_->finish(*this, failed_there_ ? Status(ErrorCode::kRemote, std::string(reply_.name())) : Status());
}

void Call::on_broken(Inbound&, Status reason) noexcept {
  connection_->finish(
      *this, Status(reason.code(), "the answer of '" + connection_->identity().name + "' to '" +
                                       std::string(request.name()) + "' cannot be received: " + reason.message()));
}

void Call::on_sent() noexcept {
  if (is_final_) return;
  if (answer == Answer::kNone) return connection_->finish(*this, Status());
  if (is_exposing_) finish_answered();
}

}  // namespace axon::rpc
