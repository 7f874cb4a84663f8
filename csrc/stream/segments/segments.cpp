#include "stream/segments/segments.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "cuda/allocation.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "stream/segments/device_peer.hpp"
#include "stream/segments/exports.hpp"
#include "stream/segments/imports.hpp"
#include "stream/segments/keeper.hpp"
#include "stream/segments/segment_tables.hpp"

namespace axon {

namespace {

// A peer, and where what it publishes is entered.
struct Followed {
  SegmentEntry* table;
  std::unique_ptr<Imports> imports;
};

using Clock = Keeper::Clock;

constexpr std::chrono::milliseconds kSweepInterval{100};
// What could not be mapped is tried again: memory or descriptors may have been short.
constexpr std::chrono::seconds kRetryInterval{10};

// Each piece of a run keeps a descriptor open. This is what a process can do without, of those that it may open.
constexpr size_t kMostDescriptors = 4096;
constexpr size_t kShareOfDescriptors = 4;

size_t num_descriptors() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return std::min<size_t>(limit.rlim_cur / kShareOfDescriptors, kMostDescriptors);
}

class DriversMemory final : public OwnMemory {
 public:
  Result<Allocation> allocation_at(uint64_t address) const override { return axon::allocation_at(address); }
  Result<FileDescriptor> share(const Allocation& allocation) const override { return axon::share(allocation); }
  Result<LegacyHandle> legacy_handle_of(const Allocation& allocation) const override {
    return axon::legacy_handle_of(allocation);
  }
};

}  // namespace

struct Segments::Parts {
  Parts(int device, uint64_t incarnation, std::unique_ptr<SegmentTables> tables, LaunchLedger& launches)
      : device(device),
        launches(launches),
        tables(std::move(tables)),
        board(incarnation),
        exports(memory, board, {.device = device, .num_descriptors = num_descriptors()}) {}

  void wake();
  Liveliness tend();
  void sweep();
  size_t look_at_peers();
  bool close_retired();

  const int device;
  LaunchLedger& launches;
  const std::unique_ptr<SegmentTables> tables;
  const DriversMemory memory;
  SegmentBoard board;
  Exports exports;
  std::once_flag kept;
  std::atomic<size_t> num_retired{0};  // relaxed: a hint

  // The keeper's thread only.
  Clock::time_point swept_at{};
  Clock::time_point retried_at{};
  bool has_closed = false;

  mutable std::mutex mutex;  // guards all below; the imports' content belongs to the keeper's thread
  std::vector<Followed> followed;
  std::vector<std::unique_ptr<MappedSegment>> retired;
  size_t num_imported = 0;
};

Segments::Segments(std::unique_ptr<Parts> parts) noexcept : parts_(std::move(parts)) {}
Segments::~Segments() = default;

Result<std::unique_ptr<Segments>> Segments::create(int device, uint64_t incarnation, LaunchLedger& launches) {
  const RelaxedCapture relaxed;
  const DeviceGuard guard(device);
  Result<std::unique_ptr<SegmentTables>> tables = SegmentTables::create(device);
  if (!tables.ok()) return std::move(tables.status());
  auto parts = std::make_unique<Parts>(device, incarnation, std::move(tables).value(), launches);
  return std::unique_ptr<Segments>(new Segments(std::move(parts)));
}

SegmentPlace Segments::locate(const void* data, size_t num_bytes) {
  const RelaxedCapture relaxed;
  const DeviceGuard guard(parts_->device);
  const Exports::Located located = parts_->exports.locate(reinterpret_cast<uint64_t>(data), num_bytes);
  if (located.is_news) parts_->wake();
  return located.place;
}

const SegmentEntry* Segments::follow(const DeviceCard& card, const PeerProcess* process) {
  if (process == nullptr || card.segments == 0) return parts_->tables->empty();
  const std::lock_guard lock(parts_->mutex);
  const std::optional<SegmentEntry*> table = parts_->tables->take();
  if (!table) {
    log::info("too many processes have been peers of GPU " + std::to_string(parts_->device) +
              ": tensors of further ones go through the arena");
    return parts_->tables->empty();
  }
  auto peer = std::make_unique<DevicePeer>(DevicePeerParts{.device = parts_->device,
                                                           .process = *process,
                                                           .tables = *parts_->tables,
                                                           .table = *table,
                                                           .num_retired = parts_->num_retired});
  const BoardPlace board{.address = card.segments, .incarnation = card.incarnation};
  parts_->followed.push_back({.table = *table, .imports = std::make_unique<Imports>(std::move(peer), board)});
  parts_->wake();
  return *table;
}

bool Segments::unfollow(const SegmentEntry* table) {
  if (table == parts_->tables->empty()) return true;
  const std::lock_guard lock(parts_->mutex);
  const auto has_table = [table](const Followed& peer) { return peer.table == table; };
  if (std::ranges::any_of(parts_->followed, has_table)) {
    parts_->wake();
    return false;
  }
  parts_->tables->give_back(table);
  return true;
}

std::span<std::byte> Segments::find(const SegmentEntry* table, uint32_t number) const {
  return parts_->tables->find(table, number);
}

void Segments::look_soon() noexcept {
  parts_->wake();
}

uint64_t Segments::board_address() const noexcept {
  return parts_->board.address();
}

SegmentCounts Segments::counts() const {
  const std::lock_guard lock(parts_->mutex);
  return {.num_exported = parts_->exports.num_segments(),
          .num_imported = parts_->num_imported,
          .num_retired = parts_->retired.size()};
}

void Segments::Parts::wake() {
  std::call_once(kept, [this] { Keeper::instance().keep([this] { return tend(); }); });
  Keeper::instance().wake();
}

Liveliness Segments::Parts::tend() {
  const RelaxedCapture relaxed;
  const DeviceGuard guard(device);
  sweep();
  const size_t num_mapped = look_at_peers();
  has_closed = close_retired();
  if (has_closed || num_retired.load(std::memory_order_relaxed) > 0) return Liveliness::kHasty;
  return num_mapped > 0 || exports.num_segments() > 0 ? Liveliness::kLive : Liveliness::kIdle;
}

// Closing waits for all kernels of the device, and whatever other threads launch meanwhile waits for it.
bool Segments::Parts::close_retired() {
  if (num_retired.load(std::memory_order_relaxed) == 0) return false;
  return launches.run_if_idle([this] {
    std::vector<std::unique_ptr<MappedSegment>> closed;
    const std::lock_guard lock(mutex);
    closed.swap(retired);
    num_retired.store(0, std::memory_order_relaxed);
  });
}

void Segments::Parts::sweep() {
  if (Clock::now() - swept_at < kSweepInterval) return;
  (void)exports.sweep();
  swept_at = Clock::now();
}

// The lock is not held while something is mapped: whoever follows another peer may hold up the engine.
size_t Segments::Parts::look_at_peers() {
  std::vector<Imports*> peers;
  {
    const std::lock_guard lock(mutex);
    for (const Followed& peer : followed) peers.push_back(peer.imports.get());
  }
  std::vector<std::unique_ptr<MappedSegment>> dropped;
  size_t num_mapped = 0;
  const bool retries = has_closed || Clock::now() - retried_at > kRetryInterval;
  if (retries) retried_at = Clock::now();
  for (Imports* peer : peers) {
    if (retries) peer->retry();
    peer->look();
    num_mapped += peer->num_mapped();
    std::ranges::move(peer->take_retired(), std::back_inserter(dropped));
  }
  const std::lock_guard lock(mutex);
  std::ranges::move(dropped, std::back_inserter(retired));
  num_retired.store(retired.size(), std::memory_order_relaxed);
  std::erase_if(followed, [](const Followed& peer) { return peer.imports->is_over(); });
  num_imported = num_mapped;
  return num_mapped;
}

}  // namespace axon
