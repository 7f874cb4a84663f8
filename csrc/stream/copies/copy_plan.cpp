#include "stream/copies/copy_plan.hpp"

#include <span>

namespace axon {

// Where a message's turn begins; what is folded has no target of its own.
template <typename Byte>
static Byte* behind(Byte* message, const Step& step) noexcept {
  return message == nullptr ? nullptr : message + step.begin_of_turn;
}

CopyPlan::CopyPlan(int rank, const CopyCall& call, const WorkspacePlaces& places, uint64_t shortest_piece) noexcept
    : rank_(rank),
      call_(call),
      places_(places),
      shortest_piece_(shortest_piece),
      regions_(Regions::fit(places.num_ranks, call.num_rounds, places.num_bytes)),
      schedule_(rank, regions_, shortest_piece, std::span(call.rounds.data(), call.num_rounds)) {}

CopyPlan::Push CopyPlan::push(const Step& step) const noexcept {
  const auto peer = static_cast<size_t>(step.peer);
  std::byte* const region = places_.parts[peer] + regions_.begin(step.peer, rank_, step.round);
  return {.target = region + step.piece.begin,
          .source = behind(call_.sources[step.round][peer], step) + step.piece.begin,
          .num_bytes = step.piece.num_bytes,
          .flag = places_.flags_of(step.peer, step.round, rank_) + step.number};
}

PieceTaking CopyPlan::taking(const Step& step) const noexcept {
  PieceTaking taking{.operation = call_.meeting.operation,
                     .dtype = call_.meeting.dtype,
                     .shortest_piece = shortest_piece_,
                     .first_piece = step.first_piece,
                     .end_of_pieces = step.end_of_pieces};
  for (int peer = 0; peer < places_.num_ranks; ++peer) {
    taking.messages[static_cast<size_t>(peer)] = peer == rank_ ? own(step) : incoming(step, peer);
  }
  return taking;
}

PieceFold CopyPlan::fold(const Step& step) const noexcept {
  PieceFold fold = *call_.fold;
  fold.output = behind(fold.output, step);
  return fold;
}

IncomingMessage CopyPlan::incoming(const Step& step, int peer) const noexcept {
  const auto index = static_cast<size_t>(peer);
  const uint64_t num_bytes = schedule_.part(call_.rounds[step.round].receives[index], step.begin_of_turn);
  if (num_bytes == 0) return {};
  return {.data = places_.parts[static_cast<size_t>(rank_)] + regions_.begin(rank_, peer, step.round),
          .target = behind(call_.targets[step.round][index], step),
          .num_bytes = num_bytes,
          .flags = places_.flags_of(rank_, step.round, peer)};
}

IncomingMessage CopyPlan::own(const Step& step) const noexcept {
  if (step.round != 0) return {};
  const uint64_t all = call_.own.num_bytes;  // goes through no region
  const uint64_t num_bytes = call_.takes_turns ? schedule_.part(all, step.begin_of_turn) : all;
  if (num_bytes == 0) return {};
  return {.data = behind(call_.own.data, step), .target = behind(call_.own.target, step), .num_bytes = num_bytes};
}

}  // namespace axon
