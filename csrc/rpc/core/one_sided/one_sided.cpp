#include "rpc/core/one_sided/one_sided.hpp"

#include "rpc/core/connection.hpp"

namespace axon::rpc {

using transport::MessageKind;

void OneSided::start(Transfer& transfer) noexcept {
  engine::Engine& engine = connection_.engine();
  if (engine.is_forked()) [[unlikely]]
    return transfer.fail_unstarted(engine::Engine::forked());
  transfer.start_on(engine);
}

bool OneSided::wait(Transfer& transfer, sync::Clock::time_point deadline) noexcept {
  return transfer.finished() || connection_.engine().wait(transfer.finished_flag(), deadline);
}

void OneSided::cancel(Transfer& transfer) noexcept {
  engine::Engine& engine = connection_.engine();
  if (engine.is_forked()) return;
  engine.exclusively([&] { initiator_.cancel(transfer); });
}

// Only writes, and answers to reads, have payloads that may wait at their sender.
static bool may_wait(MessageKind kind) noexcept {
  return kind == MessageKind::kWrite || kind == MessageKind::kData || kind == MessageKind::kDone ||
         kind == MessageKind::kGrant;
}

static bool is_request(MessageKind kind) noexcept {
  return kind == MessageKind::kOpenRegion || kind == MessageKind::kWrite || kind == MessageKind::kScatter ||
         kind == MessageKind::kRead || kind == MessageKind::kGather || kind == MessageKind::kNotify;
}

void OneSided::on_message(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept {
  if (is_request(header.kind)) connection_.engine().note_served();
  if (payload.rendezvous != nullptr && !may_wait(header.kind)) return target_.deny_long(header, payload);
  switch (header.kind) {
    case MessageKind::kOpenRegion:
      return target_.on_open(header, payload);
    case MessageKind::kWrite:
      return target_.on_write(header, payload);
    case MessageKind::kScatter:
      return target_.on_scatter(header, payload);
    case MessageKind::kRead:
      return target_.on_read(header);
    case MessageKind::kGather:
      return target_.on_gather(header, payload);
    case MessageKind::kNotify:
      return target_.on_notify(header, payload);
    case MessageKind::kForget:
      return target_.on_forget(header);
    case MessageKind::kRelease:
    case MessageKind::kRevoked:
      return target_.on_released(header);
    case MessageKind::kGrant:
      return initiator_.on_grant(header, payload);
    case MessageKind::kData:
      return initiator_.on_data(header, payload);
    case MessageKind::kRevoke:
      return initiator_.on_revoke(header);
    default:
      return initiator_.on_done(header, payload);
  }
}

// A peer that is lost, or has closed the connection, reads nothing any more. If this end has closed the connection, the
// peer may learn of that later.
void OneSided::fail(const Status& reason) noexcept {
  initiator_.fail(reason);
  target_.fail(reason);
}

void OneSided::on_transport_gone() noexcept {
  initiator_.on_transport_gone();
  target_.on_transport_gone();
}

}  // namespace axon::rpc
