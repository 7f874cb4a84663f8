#include "engine/group_message.hpp"

#include <algorithm>
#include <new>
#include <span>

namespace axon::engine {

// The longest text. It fits into one eager message of any transport.
static constexpr size_t kLongestText = 4096;

namespace {

// A message's text and completion, in the messenger's pool until the transport has completed it.
struct Sending : transport::Completion {
  SizeClassPool* pool;
  size_t num_bytes;

  std::byte* text() noexcept { return reinterpret_cast<std::byte*>(this + 1); }

  static void release(transport::Completion& completion, Status) noexcept {
    auto& sending = static_cast<Sending&>(completion);
    sending.pool->release(&sending, sizeof sending + sending.num_bytes);
  }
};

}  // namespace

void send(messaging::Messenger& messenger, const messaging::Team& team, int destination,
          const GroupMessage& message) noexcept {
  const transport::PeerId peer = team.peers[static_cast<size_t>(destination)];
  if (destination == team.rank || messenger.is_lost(peer)) return;
  const transport::ControlHeader header{.key = team.keys[static_cast<size_t>(destination)],
                                        .kind = message.kind,
                                        .error = message.code,
                                        .latest_sequence = message.sequence,
                                        .num_sent = message.num_sent,
                                        .source = static_cast<uint32_t>(team.rank),
                                        .destination = static_cast<uint32_t>(destination),
                                        .num_launched = message.num_launched,
                                        .origin = static_cast<uint32_t>(message.origin)};
  const std::string_view text = message.text.substr(0, kLongestText);
  SizeClassPool& pool = messenger.size_class_pool();
  auto* sending = new (pool.allocate(sizeof(Sending) + text.size())) Sending;
  sending->done = &Sending::release;
  sending->pool = &pool;
  sending->num_bytes = text.size();
  std::ranges::copy(std::as_bytes(std::span(text)), sending->text());
  if (auto sent = messenger.transport().send(peer, header, {sending->text(), text.size()}, *sending)) {
    Sending::release(*sending, std::move(*sent));
  }
}

std::string text_of(const transport::Payload& payload) {
  if (payload.bytes == nullptr) return {};
  return {reinterpret_cast<const char*>(payload.bytes), std::min(payload.num_bytes, kLongestText)};
}

}  // namespace axon::engine
