#include "gpu_comm/progress_reader.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/wrapping.hpp"
#include "gpu_comm/fault_text.hpp"

namespace axon::gpu_comm {

// Never destroyed, as the IPC cache's thread is not (ipc/registrations/cache_thread.cpp).
static ipc::CacheThread& thread() {
  struct StopAtExit {
    ipc::CacheThread* const thread = new ipc::CacheThread("axon-gpu-view");
    ~StopAtExit() { thread->stop(); }
  };
  static const StopAtExit made;
  return *made.thread;
}

ProgressReader& ProgressReader::instance() {
  static ProgressReader& reader = *new ProgressReader();
  return reader;
}

// Epochs alternate between the regions. A region that was wiped holds epochs of the other one.
static engine::DeviceProgress latest_of(const TeamCopy& copy, const LocalTeam& team, int index) {
  engine::DeviceProgress found{.rank = team.rank_of(index), .num_entered = 0, .call = {}};
  for (uint32_t region = 0; region < copy.descriptors.size(); ++region) {
    const cuda::LlPacket& packet = copy.descriptors[region][static_cast<size_t>(index)];
    const bool is_whole = packet.low_epoch == packet.high_epoch && packet.low_epoch % 2 == region;
    if (!is_whole || packet.low_epoch == 0) continue;
    if (!found.call.empty() && !is_later(packet.low_epoch, found.num_entered)) continue;
    const uint64_t bits = uint64_t{packet.high} << 32 | packet.low;
    found.num_entered = packet.low_epoch;
    found.call = describe(std::bit_cast<cuda::DeviceDescriptor>(bits), 0, team);
  }
  return found;
}

std::vector<engine::DeviceProgress> progress_in(const TeamCopy& copy, const LocalTeam& team) {
  std::vector<engine::DeviceProgress> ranks;
  for (int index = 0; index < team.size(); ++index) {
    if (index == team.index()) {
      ranks.push_back({.rank = team.rank_of(index), .num_entered = copy.state.epochs[0], .call = {}});
    } else {
      ranks.push_back(latest_of(copy, team, index));
    }
  }
  return ranks;
}

Status ProgressReader::add(ProgressSource source) {
  {
    const std::lock_guard lock(mutex_);
    if (!has_task_) {
      AXON_TRY(thread().add_task([this] { return tend(); }));
      has_task_ = true;
    }
    source.communicator->show_progress(progress_in({}, source.local), {});
    const uint32_t num_answered = source.communicator->num_progress_requests();
    entries_.push_back({.source = std::move(source), .number = ++num_added_, .num_answered = num_answered});
  }
  thread().wake();
  return Status();
}

void ProgressReader::remove(const engine::Communicator& communicator) noexcept {
  const std::lock_guard lock(mutex_);
  entries_.remove_if([&](const Entry& entry) { return entry.source.communicator == &communicator; });
}

bool ProgressReader::has(const Entry& entry) const noexcept {
  return std::ranges::find(entries_, entry.number, &Entry::number) != entries_.end();
}

ipc::Liveliness ProgressReader::tend() {
  std::vector<Entry> due;
  {
    const std::lock_guard lock(mutex_);
    if (entries_.empty()) return ipc::Liveliness::kIdle;
    for (Entry& entry : entries_) {
      const uint32_t num_requests = entry.source.communicator->num_progress_requests();
      if (std::exchange(entry.num_answered, num_requests) != num_requests) due.push_back(entry);
    }
  }
  for (const Entry& entry : due) answer(entry);
  return ipc::Liveliness::kLive;
}

// The group may end meanwhile, so its communicator is used under the lock only.
void ProgressReader::answer(const Entry& entry) {
  const ProgressSource& source = entry.source;
  TeamCopy copy;
  const cuda::TeamLayout& layout = source.team.layout;
  const std::byte* const packets = source.team.slices[source.team.rank] + layout.packets;
  const size_t num_bytes = static_cast<size_t>(source.team.num_ranks) * sizeof(cuda::LlPacket);
  const size_t region_bytes = layout.region_packets * sizeof(cuda::LlPacket);
  // The count comes first: a peer's descriptor may then be of a later collective, and never of one long past.
  const ipc::Arena::CopyOut copies[] = {
      {.to = &copy.state, .from = source.team.state, .num_bytes = sizeof copy.state},
      {.to = copy.descriptors[0].data(), .from = packets, .num_bytes = num_bytes},
      {.to = copy.descriptors[1].data(), .from = packets + region_bytes, .num_bytes = num_bytes},
  };
  const auto is_taken = [&] {
    const std::lock_guard lock(mutex_);
    return has(entry);
  };
  if (!source.arena->copy_out(copies, is_taken).ok()) return;
  const std::vector<engine::DeviceProgress> ranks = progress_in(copy, source.local);
  const std::lock_guard lock(mutex_);
  if (has(entry)) source.communicator->show_progress(ranks, sync::Clock::now());
}

}  // namespace axon::gpu_comm
