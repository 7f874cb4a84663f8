#include "gpu_comm/device_group.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "base/log.hpp"
#include "collectives/selector.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/memory.hpp"
#include "gpu_comm/fault_text.hpp"
#include "gpu_comm/launch.hpp"
#include "gpu_comm/progress_reader.hpp"
#include "kernels/host_partitions.hpp"
#include "kernels/host_slots.hpp"
#include "kernels/ll128/collectives.hpp"
#include "kernels/load.hpp"
#include "kernels/reduce_slots.hpp"
#include "kernels/team_layout.hpp"

namespace axon::gpu_comm {

// A kernel that waits for a rank whose process has ended knows that; it takes what the rank had sent, and ends. Other
// waits for a lost rank end with the whole group this long after the loss, since some are for other ranks.
static constexpr std::chrono::milliseconds kLossGracePeriod{500};

static constexpr PeerAccess kTeams[] = {PeerAccess::kSmall, PeerAccess::kLarge};

static size_t index_of(PeerAccess access) noexcept {
  return static_cast<size_t>(access) - static_cast<size_t>(PeerAccess::kSmall);
}

// The part of a slice that a team uses.
static ipc::ArenaSlice part_of_slice(PeerAccess access) noexcept {
  static constexpr size_t kSmall = ipc::SliceAllocator::kSmallSlice;
  if (access == PeerAccess::kSmall) return {.offset = 0, .num_bytes = kSmall};
  return {.offset = kSmall, .num_bytes = ipc::SliceAllocator::kLargeSlice - kSmall};
}

DeviceGroup::DeviceGroup(engine::Communicator& communicator, int device, std::chrono::milliseconds timeout,
                         cuda::Event event)
    : communicator_(communicator),
      team_(communicator.topology(), communicator.rank()),
      device_(device),
      timeout_(timeout),
      order_(std::move(event)) {}

Result<std::unique_ptr<DeviceGroup>> DeviceGroup::form(engine::Communicator& communicator, int device,
                                                       std::chrono::milliseconds timeout, uint32_t round) {
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(device);
  Result<cuda::Event> event = cuda::Event::create_untimed();
  if (!event.ok()) return std::move(event.status());
  // Those of other kernels are loaded with the arena. A load may wait for running kernels, which may wait for this
  // rank.
  if (Status loaded = kernels::load_slot_kernels(); !loaded.ok()) return loaded;
  if (Status loaded = kernels::load_reduce_slots_kernels(); !loaded.ok()) return loaded;
  if (Status loaded = kernels::load_transfer_kernels(); !loaded.ok()) return loaded;
  if (Status loaded = kernels::load_host_partition_kernels(); !loaded.ok()) return loaded;
  std::unique_ptr<DeviceGroup> group(new DeviceGroup(communicator, device, timeout, std::move(event).value()));
  if (Status taken = group->take_slice(); !taken.ok()) {
    log::info("group '" + communicator.name() + "' sends CUDA tensors through host memory: " + taken.message());
    group->without_slice_ = std::move(taken);
  }
  group->links_ = PeerLinks::open(communicator, group->arena_, group->slice_, round);
  communicator.set_device_hook(group.get());
  return group;
}

Status DeviceGroup::take_slice() {
  const int num_ranks = team_.size();
  if (num_ranks < 2 || num_ranks > cuda::kMaxTeamRanks) {
    return {ErrorCode::kInvalidArgument, "kernels serve 2 to " + std::to_string(cuda::kMaxTeamRanks) +
                                             " ranks of a host, and the group has " + std::to_string(num_ranks) +
                                             " on this one"};
  }
  if (!config::has_transport("cuda")) {
    return {ErrorCode::kInvalidArgument, "AXON_TRANSPORTS does not name cuda"};
  }
  Result<ipc::Arena*> arena = ipc::Arena::of(device_);
  if (!arena.ok()) return std::move(arena.status());
  AXON_TRY(arena.value()->prepare(num_ranks));
  Result<ipc::ArenaSlice> slice = arena.value()->take();
  if (!slice.ok()) return std::move(slice.status());
  arena_ = arena.value();
  slice_ = slice.value();
  for (const PeerAccess access : kTeams) {
    const ipc::ArenaSlice part = part_of_slice(access);
    Result<cuda::TeamLayout> layout = kernels::lay_out(num_ranks, part.num_bytes);
    if (!layout.ok()) return std::move(layout.status());
    if (part.offset < slice_.num_bytes) build_team(access, layout.value());
  }
  return Status();
}

void DeviceGroup::build_team(PeerAccess access, const cuda::TeamLayout& layout) {
  std::byte* const own = arena_->data() + slice_.offset + part_of_slice(access).offset;
  cuda::DeviceTeam& team = teams_[index_of(access)];
  team.rank = team_.index();
  team.num_ranks = team_.size();
  team.layout = layout;
  team.state = reinterpret_cast<cuda::TeamState*>(own);
  team.control = arena_->controls(slice_) + index_of(access);
  team.slices[team.rank] = own;
}

// Queued kernels continue to run. After them the streams notify all slice owners that this rank has detached.
DeviceGroup::~DeviceGroup() {
  communicator_.set_device_hook(nullptr);
  abort_host_transfers();
  links_->close();
  ProgressReader::instance().remove(communicator_);
  if (slice_.num_bytes == 0) return;
  arena_->launches().forget(order_);
  arena_->detach({.rank = team_.index(),
                  .slice = slice_,
                  .slice_owners = links_->slice_owners(),
                  .slice_users = links_->slice_users(),
                  .graphs = order_.take_graphs()},
                 order_.streams());
}

void DeviceGroup::connect(int index, PeerAccess access) {
  const ipc::PeerSlice peer_slice = links_->peer_slice(index);
  for (const PeerAccess team : kTeams) {
    if (team > access) continue;
    teams_[index_of(team)].slices[index] =
        peer_slice.arena->data() + peer_slice.slice.offset + part_of_slice(team).offset;
    teams_[index_of(team)].registrations[index] = peer_slice.arena->registrations();
  }
  const std::lock_guard lock(fate_mutex_);
  lost_ranks_.connect(index);
}

Result<bool> DeviceGroup::has_link(int peer) {
  const int index = team_.index_of(peer);
  if (index < 0 || index >= cuda::kMaxTeamRanks) return false;
  std::optional<PeerAccess>& known = peer_access_[static_cast<size_t>(index)];
  {
    const std::lock_guard lock(mutex_);
    if (known) return *known != PeerAccess::kNone;
  }
  Result<PeerAccess> agreed = links_->agree(peer, timeout_);
  if (!agreed.ok()) return std::move(agreed.status());
  const std::lock_guard lock(mutex_);
  if (agreed.value() != PeerAccess::kNone) connect(index, agreed.value());
  known = agreed.value();
  return agreed.value() != PeerAccess::kNone;
}

Result<PeerAccess> DeviceGroup::agree_all() {
  {
    const std::lock_guard lock(mutex_);
    if (local_access_) return *local_access_;
  }
  Result<PeerAccess> agreed = links_->agree_all(timeout_);
  if (!agreed.ok()) return agreed;
  const std::lock_guard lock(mutex_);
  for (int index = 0; agreed.value() != PeerAccess::kNone && index < team_.size(); ++index) {
    if (index != team_.index()) connect(index, agreed.value());
  }
  local_access_ = agreed.value();
  if (agreed.value() != PeerAccess::kNone && slice_.num_bytes != 0) show_progress();  // a rank alone has no slice
  return agreed;
}

// Call this with the lock held.
void DeviceGroup::show_progress() {
  const Status added = ProgressReader::instance().add(
      {.communicator = &communicator_, .arena = arena_, .local = team_, .team = teams_[index_of(*local_access_)]});
  if (!added.ok()) log::info("the doctor's live view will not show launches of CUDA graphs: " + added.message());
}

Result<bool> DeviceGroup::has_local_links() {
  Result<PeerAccess> agreed = agree_all();
  if (!agreed.ok()) return std::move(agreed.status());
  return agreed.value() != PeerAccess::kNone;
}

Result<bool> DeviceGroup::has_all_links() {
  return communicator_.topology().is_one_host() ? has_local_links() : Result<bool>(false);
}

Status DeviceGroup::obstacle_to(int peer) const {
  const bool needs_slice = team_.index_of(peer) >= 0;
  return needs_slice && !without_slice_.ok() ? without_slice_.clone() : links_->obstacle_to(peer);
}

PeerAccess DeviceGroup::access_for_all() const noexcept {
  return communicator_.topology().is_one_host() ? local_access_.value_or(PeerAccess::kNone) : PeerAccess::kNone;
}

PeerAccess DeviceGroup::access_for(const engine::Operation& operation) const noexcept {
  if (operation.direction == engine::Direction::kCollective) return access_for_all();
  const int index = team_.index_of(operation.peer);
  if (index < 0 || index >= cuda::kMaxTeamRanks) return PeerAccess::kNone;
  return peer_access_[static_cast<size_t>(index)].value_or(PeerAccess::kNone);
}

bool DeviceGroup::serves(const engine::Operation& operation) const noexcept {
  const std::lock_guard lock(mutex_);
  return serves(query_of(operation, team_.size()), access_for(operation));
}

// A rank that is alone on its host has no kernel for a factor. It answers everything else as its pairs would: LL128
// moves data of any type, and what it reduces does not depend on the number of ranks or on slices.
bool DeviceGroup::serves_local(const engine::Operation& call) const noexcept {
  const Reduction reduction = call.arguments.reduction;
  const bool is_one_alone = communicator_.topology().num_columns() == 1;
  if (is_one_alone && reduction == Reduction::kPremulSum) return false;
  const std::lock_guard lock(mutex_);
  if (local_access_.value_or(PeerAccess::kNone) == PeerAccess::kNone) return false;
  return reduction == Reduction::kNone || kernels::has_kernel(call.arguments.dtype, reduction);
}

bool DeviceGroup::serves(const KernelQuery& query, PeerAccess access) const noexcept {
  if (access == PeerAccess::kNone) return false;
  const Kernel kernel = select(query, access);
  if (team_.size() > 1) note_choice(query, kernel);
  return kernel != Kernel::kNone;
}

Kernel DeviceGroup::kernel_for(const KernelQuery& query) const noexcept {
  const std::lock_guard lock(mutex_);
  const PeerAccess access = access_for_all();
  return access == PeerAccess::kNone ? Kernel::kNone : select(query, access);
}

Kernel DeviceGroup::select(const KernelQuery& query, PeerAccess access) const noexcept {
  return select_kernel(query, teams_[index_of(access)].layout, communicator_.overrides().kernel_of(query.kind));
}

// Warns once per operation that AXON_ALGO names a kernel that cannot serve this call. Calls without
// data run LL128, whatever is named.
void DeviceGroup::note_choice(const KernelQuery& query, Kernel kernel) const {
  const Kernel wanted = communicator_.overrides().kernel_of(query.kind);
  const uint32_t bit = 1u << static_cast<uint32_t>(query.kind);
  if (wanted == Kernel::kNone || wanted == kernel || query.num_bytes == 0 || (warned_of_ & bit) != 0) return;
  warned_of_ |= bit;
  const std::string instead =
      kernel == Kernel::kNone ? "goes through host memory" : std::string("uses ") + name_of(kernel);
  log::warn("group '" + communicator_.name() + "': AXON_ALGO names " + name_of(wanted) + " for " + name_of(query.kind) +
            ", which cannot serve " + std::to_string(query.num_bytes) + " bytes of " + name_of(query.dtype) +
            " among " + std::to_string(query.num_ranks) + " ranks. This call " + instead +
            "; later calls of this kind are not reported");
}

cuda::DeviceTeam DeviceGroup::team_for(PeerAccess access, std::chrono::milliseconds timeout) const noexcept {
  cuda::DeviceTeam team = teams_[index_of(access)];
  const std::chrono::nanoseconds longest = timeout.count() > 0 ? timeout : timeout_;
  team.timeout_ns = static_cast<uint64_t>(longest.count());
  return team;
}

static Status refused(const engine::Operation& operation) {
  return {ErrorCode::kInternal, operation.describe() + ": no kernel serves it"};
}

// Performs a collective of one rank.
// Call this with the lock held.
template <typename Launch>
Status DeviceGroup::launch_in_order(cuda::StreamView stream, Launch launch) {
  const cuda::DeviceGuard guard(device_);
  const ipc::LaunchLedger::Launching launching = arena_->launches().launching();
  AXON_TRY(order_.follow(stream));
  AXON_TRY(launch());
  return arena_->launches().note(order_, stream);
}

// Call this with the lock held. The ranks of this host must be those of the call.
Result<Kernel> DeviceGroup::launch_in_team(const engine::Operation& call, PeerAccess access, cuda::StreamView stream,
                                           kernels::Beside beside) {
  if (access == PeerAccess::kNone) return refused(call);
  const cuda::DeviceTeam team = team_for(access, call.timeout);
  const Kernel kernel = select(query_of(call, team.num_ranks), access);
  if (kernel == Kernel::kNone) return refused(call);
  const LaunchContext context{
      .team = team, .registrations = arena_->registrations(), .stream = stream, .beside = beside};
  AXON_TRY(launch_in_order(stream, [&] { return launch_collective(context, kernel, call); }));
  return kernel;
}

Status DeviceGroup::launch(const engine::Operation& operation, cuda::StreamView stream, kernels::Beside beside) {
  if (operation.direction != engine::Direction::kCollective) {
    const engine::Operation* const messages[] = {&operation};
    return launch_batch(messages, stream);
  }
  const std::lock_guard lock(mutex_);
  Result<Kernel> kernel = launch_in_team(operation, access_for(operation), stream, beside);
  if (!kernel.ok()) return std::move(kernel.status());
  const Result<bool> is_captured = is_capturing(stream);
  communicator_.note_launch(operation, name_of(kernel.value()),
                            is_captured.ok() && is_captured.value() ? engine::Communicator::Launch::kIsCaptured
                                                                    : engine::Communicator::Launch::kRuns);
  return Status();
}

Status DeviceGroup::launch_local(const engine::Operation& call, cuda::StreamView stream, kernels::Beside beside) {
  if (team_.size() == 1) {
    const cuda::DeviceGuard guard(device_);
    return copy_own_shard(call.arguments, stream);
  }
  const std::lock_guard lock(mutex_);
  return launch_in_team(call, local_access_.value_or(PeerAccess::kNone), stream, beside).status().clone();
}

Status DeviceGroup::enqueue_barrier(const StreamBarrier& barrier, cuda::StreamView stream) {
  const std::lock_guard lock(mutex_);
  const PeerAccess access = access_for_all();
  if (access == PeerAccess::kNone)
    return {ErrorCode::kInternal, "barrier: not all ranks have peer access to each other"};
  const cuda::DeviceTeam team = team_for(access, barrier.timeout);
  return launch_in_order(stream, [&] {
    return kernels::ll128::exchange(
        team, {.operation = barrier.operation, .dtype = barrier.dtype, .barrier_bits = barrier.descriptor.bits()},
        stream);
  });
}

void DeviceGroup::watch(std::shared_ptr<Arrivals> arrivals) {
  const std::lock_guard lock(fate_mutex_);
  if (!reason_.ok()) arrivals->give_up();
  watched_.push_back(std::move(arrivals));
}

Status DeviceGroup::await(const Arrivals& arrivals, int tile, cuda::StreamView stream) {
  return enqueue(stream, [&] { return arrivals.await(tile, stream); });
}

std::weak_ptr<void> DeviceGroup::graphs() const {
  const std::lock_guard lock(mutex_);
  return order_.graphs();
}

// A message to a lost rank would remain in its slice forever.
Status DeviceGroup::check_addressee(const engine::Operation& message) {
  if (message.direction != engine::Direction::kSend) return Status();
  const std::lock_guard lock(fate_mutex_);
  const Status& loss = lost_ranks_.reason_of(team_.index_of(message.peer));
  if (loss.ok()) return Status();
  return {loss.code(), communicator_.signed_text(message.describe() + ": " + loss.message())};
}

// Both ranks of a pair serve pairs with large slices first, so the two launches cannot deadlock.
Status DeviceGroup::launch_batch(std::span<const engine::Operation* const> point_to_points, cuda::StreamView stream) {
  const std::lock_guard lock(mutex_);
  std::array<std::vector<const engine::Operation*>, kNumTeams> batches;
  for (const engine::Operation* message : point_to_points) {
    const PeerAccess access = access_for(*message);
    if (access == PeerAccess::kNone) return refused(*message);
    AXON_TRY(check_addressee(*message));
    batches[index_of(access)].push_back(message);
  }
  const cuda::DeviceGuard guard(device_);
  const ipc::LaunchLedger::Launching launching = arena_->launches().launching();
  AXON_TRY(order_.note(stream));
  for (const PeerAccess access : {PeerAccess::kLarge, PeerAccess::kSmall}) {
    const std::vector<const engine::Operation*>& messages = batches[index_of(access)];
    if (messages.empty()) continue;
    const cuda::DeviceTeam team = team_for(access, messages.front()->timeout);
    const LaunchContext context{.team = team,
                                .registrations = arena_->registrations(),
                                .stream = stream,
                                .wanted = communicator_.overrides().kernel_of(transport::OperationKind::kPointToPoint)};
    AXON_TRY(launch_messages(context, team_, messages));
    for (const engine::Operation* message : messages) communicator_.note_launch(*message, "messages");
  }
  return arena_->launches().note(order_, stream);
}

Result<uint64_t> DeviceGroup::total(uint32_t cuda::TeamState::* counter) const {
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(device_);
  Result<cuda::Stream> stream = cuda::Stream::create();
  if (!stream.ok()) return std::move(stream.status());
  std::array<uint32_t, kNumTeams> counts{};
  for (size_t team = 0; team < kNumTeams; ++team) {
    if (teams_[team].state == nullptr) continue;
    AXON_TRY(copy_async(&counts[team], &(teams_[team].state->*counter), sizeof(uint32_t), stream.value()));
  }
  AXON_TRY(stream.value().view().synchronize());
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

void DeviceGroup::abort() noexcept {
  abort(Status(ErrorCode::kAborted, "the group was aborted"));
}

void DeviceGroup::abort(Status reason) noexcept {
  {
    const std::lock_guard lock(fate_mutex_);
    if (!reason_.ok()) return;
    reason_ = std::move(reason);
    for (const auto& arrivals : watched_) arrivals->give_up();
    for (const auto& transfer : host_transfers_) abort(*transfer);
  }
  if (slice_.num_bytes == 0) return;
  for (const PeerAccess team : kTeams) {
    cuda::TeamControl& control = arena_->controls(slice_)[index_of(team)];
    std::atomic_ref(control.abort).store(1, std::memory_order_relaxed);  // publishes no other data
  }
}

void DeviceGroup::on_failed(const Status& reason) noexcept {
  abort(reason.clone());
}

void DeviceGroup::on_rank_lost(int rank, const Status& reason) noexcept {
  const int index = team_.index_of(rank);
  if (index < 0 || index >= cuda::kMaxTeamRanks) return;
  const std::lock_guard lock(fate_mutex_);
  lost_ranks_.note(index, reason);
}

// Marks the lost ranks whose processes have ended: all that they wrote into tensors here has arrived. Returns whether
// all lost ranks are of this kind.
bool DeviceGroup::mark_ended_ranks() noexcept {
  uint32_t gone = 0;
  bool are_all = true;
  for (int index = 0; index < cuda::kMaxTeamRanks; ++index) {
    if (!lost_ranks_.concerns_kernels(index)) continue;
    const bool is_gone = links_->peer_slice(index).arena->is_gone();
    gone |= is_gone ? 1u << index : 0;
    are_all &= is_gone;
  }
  for (const PeerAccess team : kTeams) {
    cuda::TeamControl& control = arena_->controls(slice_)[index_of(team)];
    std::atomic_ref(control.gone).store(gone, std::memory_order_relaxed);  // publishes no other data
  }
  return are_all;
}

Status DeviceGroup::fault() noexcept {
  if (Status found = fault_of_host_transfers(); !found.ok() || slice_.num_bytes == 0) return found;
  Status lost;
  {
    const std::lock_guard lock(fate_mutex_);
    const Status& first = lost_ranks_.first();
    const bool is_known = first.ok() || (mark_ended_ranks() && watched_.empty());
    if (!is_known && sync::Clock::now() > lost_ranks_.first_lost_at() + kLossGracePeriod) lost = first.clone();
  }
  if (!lost.ok()) abort(std::move(lost));
  for (const PeerAccess team : kTeams) {
    const cuda::TeamControl& control = arena_->controls(slice_)[index_of(team)];
    Status found = fault_in(control, team_);
    if (found.ok()) continue;
    const std::lock_guard lock(fate_mutex_);
    const bool is_known = control.report.peer >= 0 && control.report.peer < team_.size();
    if (found.code() == ErrorCode::kPeerLost && is_known)
      return lost_ranks_.reason_of(control.report.peer).followed_by(found.message());
    if (found.code() != ErrorCode::kAborted || reason_.ok()) return found;
    return reason_.followed_by(found.message());
  }
  return Status();
}

}  // namespace axon::gpu_comm
