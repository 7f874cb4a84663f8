#include "ipc/registrations/registrations.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <iterator>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "cuda/allocation.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "ipc/registrations/cache_thread.hpp"
#include "ipc/registrations/device_peer.hpp"
#include "ipc/registrations/exports.hpp"
#include "ipc/registrations/imports.hpp"
#include "ipc/registrations/registration_tables.hpp"

namespace axon::ipc {

namespace {

// Only the cache thread uses its content, except for what Parts::mutex guards.
struct Followed : RegistrationOwner {
  cuda::RegistrationEntry* entries;  // the table
  ExportTableLocation export_table;
  std::shared_ptr<const PeerProcess> process;
  std::unique_ptr<Imports> imports;
  // State of the latest look, guarded by Parts::mutex:
  bool may_have_more = false;  // in the export table
  std::string obstacle{};
};

using Clock = CacheThread::Clock;

constexpr std::chrono::milliseconds kSweepInterval{100};
// Interval of retries after a failed mapping: memory or descriptors may have been short.
constexpr std::chrono::seconds kRetryInterval{10};
constexpr std::chrono::seconds kLongestLook{2};

// Each extent that is exported by descriptor keeps one open. A process can spare this many of its descriptors.
constexpr size_t kMostDescriptors = 4096;
constexpr size_t kShareOfDescriptors = 4;

size_t num_descriptors() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return std::min<size_t>(limit.rlim_cur / kShareOfDescriptors, kMostDescriptors);
}

class DriversMemory final : public OwnMemory {
 public:
  Result<cuda::Allocation> allocation_at(uint64_t address) const override { return cuda::allocation_at(address); }
  Result<FileDescriptor> share(const cuda::Allocation& allocation) const override { return cuda::share(allocation); }
  Result<cuda::LegacyHandle> legacy_handle_of(const cuda::Allocation& allocation) const override {
    return cuda::legacy_handle_of(allocation);
  }
};

}  // namespace

struct Registrations::Parts {
  Parts(int device, uint64_t incarnation, std::unique_ptr<RegistrationTables> tables, LaunchLedger& launches)
      : device(device),
        launches(launches),
        tables(std::move(tables)),
        empty_owner(std::make_shared<RegistrationOwner>(this->tables->empty())),
        export_table(incarnation),
        exports(memory, export_table, {.device = device, .num_descriptors = num_descriptors()}) {}

  // Fails if the cache thread cannot be started.
  Status wake();
  Liveliness tend();
  void sweep();
  size_t look_at_peers();
  bool has_peers() const;
  void put_away(const std::vector<std::shared_ptr<Followed>>& forgotten);
  bool close_retired();

  const int device;
  LaunchLedger& launches;
  const std::unique_ptr<RegistrationTables> tables;
  const std::shared_ptr<const RegistrationOwner> empty_owner;
  const DriversMemory memory;
  ExportTable export_table;
  Exports exports;
  std::mutex task_mutex;
  std::atomic<bool> has_task{false};   // written under task_mutex; relaxed: the cache thread's lock publishes the task
  std::atomic<size_t> num_retired{0};  // relaxed: a hint
  std::atomic<bool> expects_peers{false};  // relaxed: the cache thread's lock orders it before the look that it wakes

  // Used by the cache thread only.
  Clock::time_point swept_at{};
  Clock::time_point retried_at{};
  bool has_closed = false;

  mutable std::mutex mutex;  // guards all members below
  std::condition_variable has_looked;
  uint64_t num_looks_begun = 0;
  uint64_t num_looks_done = 0;
  std::vector<std::shared_ptr<Followed>> followed;  // shared with the users of their tables
  std::vector<std::unique_ptr<MappedRegistration>> retired;
  size_t num_imported = 0;
};

Registrations::Registrations(std::unique_ptr<Parts> parts) noexcept : parts_(std::move(parts)) {}
Registrations::~Registrations() = default;

Result<std::unique_ptr<Registrations>> Registrations::create(int device, uint64_t incarnation, LaunchLedger& launches) {
  const cuda::RelaxedCapture relaxed;
  const cuda::DeviceGuard guard(device);
  Result<std::unique_ptr<RegistrationTables>> tables = RegistrationTables::create(device);
  if (!tables.ok()) return std::move(tables.status());
  auto parts = std::make_unique<Parts>(device, incarnation, std::move(tables).value(), launches);
  return std::unique_ptr<Registrations>(new Registrations(std::move(parts)));
}

cuda::IpcLocation Registrations::locate(const void* data, size_t num_bytes) {
  const cuda::RelaxedCapture relaxed;
  const cuda::DeviceGuard guard(parts_->device);
  const Exports::Located located = parts_->exports.locate(reinterpret_cast<uint64_t>(data), num_bytes);
  const bool lacks_task = located.location.registration != 0 && !parts_->has_task.load(std::memory_order_relaxed);
  if (!located.is_news && !lacks_task) return located.location;
  const Status woken = parts_->wake();
  if (woken.ok()) return located.location;
  log::info(woken.message() + ". Peers therefore cannot map the memory of GPU " + std::to_string(parts_->device));
  return {};
}

void Registrations::expect_peers(const void* data, size_t num_bytes) {
  const cuda::RelaxedCapture relaxed;
  const cuda::DeviceGuard guard(parts_->device);
  const bool is_new = parts_->exports.note(reinterpret_cast<uint64_t>(data), num_bytes);
  if (!is_new && parts_->expects_peers.load(std::memory_order_relaxed)) return;
  parts_->expects_peers.store(true, std::memory_order_relaxed);
  CacheThread::instance().wake();  // its task was added with the first peer
}

std::shared_ptr<const RegistrationOwner> Registrations::follow(ExportTableLocation export_table,
                                                               std::shared_ptr<const PeerProcess> process) {
  if (process == nullptr || export_table.address == 0) return parts_->empty_owner;
  const std::lock_guard lock(parts_->mutex);
  const auto is_same = [&](const std::shared_ptr<Followed>& peer) {
    return peer->export_table == export_table && peer->process->pid() == process->pid() && !peer->process->has_ended();
  };
  if (const auto known = std::ranges::find_if(parts_->followed, is_same); known != parts_->followed.end())
    return *known;
  const std::optional<cuda::RegistrationEntry*> table = parts_->tables->take();
  if (!table) {
    log::info("too many peer processes for the registration tables of GPU " + std::to_string(parts_->device) +
              ": tensors of later peers go through the arena");
    return parts_->empty_owner;
  }
  auto peer = std::make_unique<DevicePeer>(DevicePeerParts{.device = parts_->device,
                                                           .process = *process,
                                                           .tables = *parts_->tables,
                                                           .table = *table,
                                                           .num_retired = parts_->num_retired});
  auto imports = std::make_unique<Imports>(std::move(peer), export_table);
  if (const Status woken = parts_->wake(); !woken.ok()) {
    log::info(woken.message() + ". Tensors of this peer therefore go through the arena");
    parts_->tables->give_back(*table);
    return parts_->empty_owner;
  }
  parts_->followed.push_back(
      std::make_shared<Followed>(Followed{{*table}, *table, export_table, std::move(process), std::move(imports)}));
  CacheThread::instance().wake();
  return parts_->followed.back();
}

std::span<std::byte> Registrations::find(const RegistrationOwner& owner, uint32_t number) const {
  return parts_->tables->find(owner.table, number);
}

Status Registrations::await(const RegistrationOwner& owner, uint32_t number) {
  if (&owner == parts_->empty_owner.get())
    return {ErrorCode::kResourceExhausted, "too many peer processes were imported before this one"};
  const auto& peer = static_cast<const Followed&>(owner);
  const Clock::time_point deadline = Clock::now() + kLongestLook;
  std::unique_lock lock(parts_->mutex);
  while (find(owner, number).empty()) {
    const uint64_t next_look = parts_->num_looks_begun + 1;
    AXON_TRY(parts_->wake());
    if (!parts_->has_looked.wait_until(lock, deadline, [&] { return parts_->num_looks_done >= next_look; })) {
      return {ErrorCode::kTimeout, "the driver did not map it in time"};
    }
    if (peer.may_have_more || !find(owner, number).empty()) continue;
    return {ErrorCode::kInternal, peer.obstacle.empty() ? "the owner's process does not export it" : peer.obstacle};
  }
  return Status();
}

uint64_t Registrations::export_table_address() const noexcept {
  return parts_->export_table.address();
}

RegistrationCounts Registrations::counts() const {
  const std::lock_guard lock(parts_->mutex);
  return {.num_exported = parts_->exports.num_registrations(),
          .num_imported = parts_->num_imported,
          .num_retired = parts_->retired.size()};
}

Status Registrations::Parts::wake() {
  {
    const std::lock_guard lock(task_mutex);
    if (!has_task.load(std::memory_order_relaxed))
      AXON_TRY(CacheThread::instance().add_task([this] { return tend(); }));
    has_task.store(true, std::memory_order_relaxed);
  }
  CacheThread::instance().wake();
  return Status();
}

Liveliness Registrations::Parts::tend() {
  const cuda::RelaxedCapture relaxed;
  const cuda::DeviceGuard guard(device);
  sweep();
  const size_t num_mapped = look_at_peers();
  has_closed = close_retired();
  if (has_closed || num_retired.load(std::memory_order_relaxed) > 0) return Liveliness::kHasty;
  const bool awaits_peers = expects_peers.load(std::memory_order_relaxed) && has_peers();
  return num_mapped > 0 || exports.num_registrations() > 0 || awaits_peers ? Liveliness::kLive : Liveliness::kIdle;
}

bool Registrations::Parts::has_peers() const {
  const std::lock_guard lock(mutex);
  return !followed.empty();
}

// Closing waits for all kernels of the device, and any thread that launches meanwhile waits for it.
bool Registrations::Parts::close_retired() {
  if (num_retired.load(std::memory_order_relaxed) == 0) return false;
  return launches.run_if_idle([this] {
    std::vector<std::unique_ptr<MappedRegistration>> closed;
    const std::lock_guard lock(mutex);
    closed.swap(retired);
    num_retired.store(0, std::memory_order_relaxed);
  });
}

void Registrations::Parts::sweep() {
  if (Clock::now() - swept_at < kSweepInterval) return;
  (void)exports.sweep();
  swept_at = Clock::now();
}

// The lock is not held during mapping: a thread that calls follow() for another peer could block the engine.
size_t Registrations::Parts::look_at_peers() {
  std::vector<std::shared_ptr<Followed>> peers;
  std::vector<std::shared_ptr<Followed>> forgotten;
  uint64_t look = 0;
  {
    const std::lock_guard lock(mutex);
    look = ++num_looks_begun;
    const auto needed = std::ranges::stable_partition(followed, [](const std::shared_ptr<Followed>& peer) {
      return peer.use_count() > 1 || !peer->imports->is_over();
    });
    std::ranges::move(needed, std::back_inserter(forgotten));
    followed.erase(needed.begin(), needed.end());
    peers = followed;
  }
  put_away(forgotten);
  std::vector<std::unique_ptr<MappedRegistration>> dropped;
  std::vector<bool> caught_up;
  size_t num_mapped = 0;
  const bool retries = has_closed || Clock::now() - retried_at > kRetryInterval;
  if (retries) retried_at = Clock::now();
  for (const std::shared_ptr<Followed>& peer : peers) {
    if (retries) peer->imports->retry();
    caught_up.push_back(peer->imports->look());
    num_mapped += peer->imports->num_mapped();
    std::ranges::move(peer->imports->take_retired(), std::back_inserter(dropped));
  }
  const std::lock_guard lock(mutex);
  for (size_t i = 0; i < peers.size(); ++i) {
    peers[i]->may_have_more = !caught_up[i];
    peers[i]->obstacle = peers[i]->imports->obstacle();
  }
  std::ranges::move(dropped, std::back_inserter(retired));
  num_retired.store(retired.size(), std::memory_order_relaxed);
  num_imported = num_mapped;
  num_looks_done = look;
  has_looked.notify_all();
  return num_mapped;
}

// A table that cannot be cleared is never used again.
void Registrations::Parts::put_away(const std::vector<std::shared_ptr<Followed>>& forgotten) {
  for (const std::shared_ptr<Followed>& peer : forgotten) {
    if (!tables->clear(peer->entries).ok()) continue;
    const std::lock_guard lock(mutex);
    tables->give_back(peer->entries);
  }
}

}  // namespace axon::ipc
