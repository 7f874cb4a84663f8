#include "stream/copies/copies.hpp"

#include <algorithm>
#include <utility>

#include "cuda/capture.hpp"
#include "cuda/memory.hpp"
#include "device/take_pieces.hpp"
#include "stream/copies/copy_plan.hpp"

namespace axon {

namespace {

// Of the kernels that take pieces: enough to be done with one before the next has come, by the bytes that they have
// under way. The other multiprocessors are left to what runs beside.
constexpr int kCopyBlocks = 16;

int fold_blocks(Beside beside) noexcept {
  return beside == Beside::kNothing ? 32 : 16;
}

static_assert(WorkspacePlaces::kNumFlags <= Workspace::kNumFlags);

WorkspacePlaces places_of(const Workspace& workspace, int num_ranks) noexcept {
  WorkspacePlaces places{.num_ranks = num_ranks, .num_bytes = workspace.num_bytes()};
  for (int rank = 0; rank < num_ranks; ++rank) {
    places.parts[static_cast<size_t>(rank)] = workspace.at(rank);
    places.flags[static_cast<size_t>(rank)] = workspace.flags(rank);
  }
  return places;
}

// One operation, step by step.
class Run {
 public:
  Run(const LaunchSite& site, const CopyCall& call, const CopyPlan& plan, const SideStreams& streams)
      : site_(site), call_(call), plan_(plan), streams_(streams) {}

  Status enqueue() const {
    Status enqueued = plan_.for_each([&](const Step& step) { return enqueue(step); });
    Status joined = streams_.join(site_.stream);
    return enqueued.ok() ? std::move(joined) : std::move(enqueued);
  }

 private:
  Status enqueue(const Step& step) const {
    switch (step.act) {
      case Act::kMeet:
        return meet(step);
      case Act::kPush:
        return push(step);
      default:
        return take(step);
    }
  }

  // Flags are copies of this rank's epoch, so all pushes of a turn are through before it enters the next one.
  Status meet(const Step& step) const {
    if (step.begin_of_turn != 0) AXON_TRY(streams_.join(site_.stream));
    AXON_TRY(exchange_lines(site_.team, call_.meeting, site_.stream));
    return streams_.fork(site_.stream);
  }

  Status push(const Step& step) const {
    const StreamView stream = streams_.pushing(step.round, step.number);
    if (step.round > 0) AXON_TRY(streams_.order(site_.stream, stream));
    const CopyPlan::Push push = plan_.push(step);
    AXON_TRY(copy_async(push.target, push.source, push.num_bytes, stream));
    return copy_async(push.flag, &site_.team.state->epochs[0], sizeof *push.flag, stream);
  }

  Status take(const Step& step) const {
    PieceTaking taking = plan_.taking(step);
    taking.num_blocks = plan_.folds(step) ? fold_blocks(site_.beside) : kCopyBlocks;
    return plan_.folds(step) ? fold_pieces(site_.team, taking, plan_.fold(step), site_.stream)
                             : copy_pieces(site_.team, taking, site_.stream);
  }

  const LaunchSite& site_;
  const CopyCall& call_;
  const CopyPlan& plan_;
  const SideStreams& streams_;
};

}  // namespace

// What is larger goes in turns: each costs a meeting, and that the link is idle until its first piece is on its way,
// some ten microseconds.
size_t Copies::workspace_bytes(int num_ranks, size_t most_bytes) noexcept {
  static constexpr size_t kEnough = size_t{512} << 20;
  const size_t num_bytes = std::min(most_bytes, kEnough);
  return Regions::fit(num_ranks, kNumRounds, num_bytes).num_bytes == 0 ? 0 : num_bytes;
}

Result<const SideStreams*> Copies::streams_beside(StreamView stream) {
  Result<bool> captured = is_capturing(stream);
  if (!captured.ok()) return std::move(captured.status());
  std::optional<SideStreams>& streams = captured.value() ? captured_streams_ : streams_;
  if (!streams) {
    const RelaxedCapture beside_captures;
    Result<SideStreams> made = SideStreams::create();
    if (!made.ok()) return std::move(made.status());
    streams.emplace(std::move(made).value());
  }
  return &*streams;
}

Status Copies::launch(const LaunchSite& site, const Workspace& workspace, const Operation& operation) {
  Result<const SideStreams*> streams = streams_beside(site.stream);
  if (!streams.ok()) return std::move(streams.status());
  const int num_ranks = site.team.num_ranks;
  const MessageLimits of_all_to_all{.least = threshold_.least_message(num_ranks),
                                    .most = Regions::fit(num_ranks, 1, workspace.num_bytes()).num_bytes};
  const CopyCall call = copy_call_of(operation, site.team.rank, num_ranks, of_all_to_all);
  const WorkspacePlaces places = places_of(workspace, num_ranks);
  const CopyPlan plan(site.team.rank, call, places, threshold_.shortest_piece());
  return Run(site, call, plan, *streams.value()).enqueue();
}

}  // namespace axon
