// The control messages of a group: what its ranks tell each other besides the messages of operations.
//
//   send(messenger, team, rank, {.kind = transport::MessageKind::kProgressQuery, .sequence = latest});
//
// Progress owner only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "messaging/messenger.hpp"
#include "messaging/team.hpp"
#include "transport/transport.hpp"

namespace axon::engine {

struct GroupMessage {
  transport::MessageKind kind{};  // of a ControlHeader
  uint32_t sequence = 0;          // of the collective that this rank has begun last
  ErrorCode code{};               // of notices
  uint32_t num_launched = 0;      // of replies: see Answers::Progress
  uint64_t num_sent = 0;          // of departures: the point-to-point messages to that rank
  int origin = 0;                 // of notices: the rank that reports it
  std::string_view text{};        // longer texts are cut
};

// Sends a message to a rank, unless that is this rank, or its process is gone.
void send(messaging::Messenger& messenger, const messaging::Team& team, int destination,
          const GroupMessage& message) noexcept;

// Returns the text of a message that has arrived.
std::string text_of(const transport::Payload& payload);

}  // namespace axon::engine
