// Point-to-point messages that are written directly into the receivers' tensors, for large ones, with LL128 as
// fallback. One kernel on the caller's stream, eager or in a CUDA graph:
//
//   MessageLocations zero_copy{.receives_from = 1u << peer, .receives = {…, locate(tensor), …}};
//   AXON_TRY(exchange_messages(team, call, zero_copy, stream));     // at the peer: {.sends_to = …}
//
// The two ranks of a message agree on it alone, while the kernel runs. So the messages of one launch do not wait for
// each other, whichever way each goes. Either both ranks name a message in their masks or neither does; otherwise that
// is a mismatch.
//
// When the kernel has ended, whatever its outcome, no peer writes into this rank's tensors any more. The exception is a
// peer that was silent for 10 s since the failure, and whose process the host has not seen end.
#pragma once

#include "kernels/ll128/collectives.hpp"

namespace axon::kernels::zero_copy {

// What the sender tells the receiver of a message.
enum class Outcome : uint32_t { kWritten = 1, kFallBack = 2 };
// What either side leaves in the low half of Rendezvous::claim; the high half is the message's number.
enum class Claim : uint32_t { kClaimed = 1, kWithdrawn = 2 };

// The locations for the messages of an ExchangeCall on the point-to-point traffic class.
struct MessageLocations {
  uint32_t sends_to = 0;       // bit r: the message to rank r is zero-copy if possible
  uint32_t receives_from = 0;  // bit r: the same for the message from rank r
  cuda::IpcLocation receives[cuda::kMaxTeamRanks] =
      {};  // [r]: location of call.receives[r], which rank r writes; may be empty
};

// `call` is as for kernels::ll128::exchange. Messages that `zero_copy` does not name go over LL128.
Status exchange_messages(const cuda::DeviceTeam& team, const ExchangeCall& call, const MessageLocations& zero_copy,
                         cuda::StreamView stream);

}  // namespace axon::kernels::zero_copy
