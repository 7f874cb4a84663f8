// What copy engines of the peers push into this rank's memory, piece by piece: a kernel takes it from there as it
// comes, to where it belongs, or folds it. Behind a meeting of the ranks on the same stream (exchange_lines), whose
// epoch the peers' copy engines store behind each piece, as a flag.
//
//   AXON_TRY(copy_pieces(team, {.operation = …, .messages = …}, stream));
//   AXON_TRY(fold_pieces(team, …, {.output = …, .dtype = …, .reduction = …}, stream));   // the same bits as other
//   kernels
//
// It waits as other kernels do: a peer that does not come is a timeout, abort() ends it, and what has gone wrong stands
// in the team's mailbox. It is no collective by itself, and counts no epoch.
#pragma once

#include <array>

#include "base/status.hpp"
#include "cuda/device_types.hpp"
#include "cuda/stream.hpp"
#include "device/pieces.hpp"

namespace axon {

struct IncomingMessage {
  const std::byte* data = nullptr;  // where it is pushed; at a multiple of 16 bytes, but for a rank's own
  std::byte* target = nullptr;      // copy_pieces: where it belongs
  uint64_t num_bytes = 0;
  const uint32_t* flags = nullptr;  // a word a piece; null: it is all there
};

struct PieceTaking {
  DeviceOperation operation{};  // for errors, with dtype
  DataType dtype{};
  std::array<IncomingMessage, kMaxTeamRanks> messages{};  // by rank
  uint64_t shortest_piece = 0;                            // of Cut::of()
  uint32_t first_piece = 0;                               // of those to take
  uint32_t end_of_pieces = kMostPieces;
  int num_blocks = 0;
};

// Each message to its target.
Status copy_pieces(const DeviceTeam& team, const PieceTaking& call, StreamView stream);

struct PieceFold {
  std::byte* output = nullptr;  // may be the own message
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1;
};

// All ranks' messages, of one length, in rank order. As has_kernel() says.
Status fold_pieces(const DeviceTeam& team, const PieceTaking& call, const PieceFold& fold, StreamView stream);

namespace device {

// Puts these kernels on the current device.
Status load_piece_kernels();

}  // namespace device
}  // namespace axon
