// Point-to-point messages that are written straight into the receivers' tensors, for large ones; over LL128 where that
// cannot be. One kernel on the caller's stream, eager or in a CUDA graph:
//
//   MessageLocations zero_copy{.receives_from = 1u << peer, .receives = {…, location_of(tensor), …}};
//   AXON_TRY(exchange_messages(team, call, zero_copy, stream));     // at the peer: {.sends_to = …}
//
// Each message is agreed on by its two ranks alone, while the kernel runs, so those of one launch do not wait for each
// other, whatever way each goes. Both ranks name it in their masks or both do not; otherwise that is a mismatch.
//
// When the kernel has ended, whatever its outcome, no peer writes into this rank's tensors any more; but for one that
// has not been heard of for 10 s since the failure, and whose process the host has not seen end.
#pragma once

#include "kernels/ll128/collectives.hpp"

namespace axon::kernels::zero_copy {

// What the sender tells the receiver of a message, …
enum class Outcome : uint32_t { kWritten = 1, kFallBack = 2 };
// … and what either of them leaves in Rendezvous::claim, in the low half; the high one is the message's number.
enum class Claim : uint32_t { kClaimed = 1, kWithdrawn = 2 };

// Of the messages of an ExchangeCall on the point-to-point traffic class.
struct MessageLocations {
  uint32_t sends_to = 0;                                 // bit r: the message to rank r goes directly if it can
  uint32_t receives_from = 0;                            // bit r: the one from rank r
  cuda::IpcLocation receives[cuda::kMaxTeamRanks] = {};  // [r]: of call.receives[r], which rank r writes; maybe none
};

// `call` as for kernels::ll128::exchange. All messages that `zero_copy` does not name go over LL128.
Status exchange_messages(const cuda::DeviceTeam& team, const ExchangeCall& call, const MessageLocations& zero_copy,
                         cuda::StreamView stream);

}  // namespace axon::kernels::zero_copy
