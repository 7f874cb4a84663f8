#include "ipc/arena.hpp"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "base/config.hpp"
#include "base/host_id.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "cuda/capture.hpp"
#include "cuda/error.hpp"
#include "cuda/nvlink.hpp"
#include "kernels/load.hpp"

namespace axon::ipc {

namespace {

// The table of notices, at the beginning of the arena. Its first row belongs to no slice: it holds the value that is
// copied into peers' tables.
constexpr size_t kNoticeTableBytes = SliceAllocator::kUnit;
using Row = std::array<uint32_t, cuda::kMaxTeamRanks>;
constexpr uint32_t kDetached = 1;

// How long a full arena is searched for slices that are still being detached.
constexpr std::chrono::milliseconds kLongestSearch{100};
constexpr std::chrono::milliseconds kSearchInterval{1};

constexpr size_t row_of(const ArenaSlice& slice) noexcept {
  return slice.offset / SliceAllocator::kUnit;
}

bool has_graphs(const DetachNotice& notice) noexcept {
  return notice.graphs.use_count() > 1;
}

// The process's arenas, or the reasons why a device has none. Never destroyed: kernels and peers may use them until the
// process exits.
struct Registry {
  std::mutex mutex;
  std::map<int, Result<std::unique_ptr<Arena>>> arenas;  // by device
};

Registry& registry() {
  static auto* registry = new Registry;
  return *registry;
}

}  // namespace

Result<Arena*> Arena::of(int device) {
  const std::lock_guard lock(registry().mutex);
  auto found = registry().arenas.find(device);
  if (found == registry().arenas.end()) {
    found = registry().arenas.emplace(device, create(device)).first;
    if (!found->second.ok()) {
      log::info("GPU " + std::to_string(device) +
                " has no arena, so CUDA tensors go through host memory: " + found->second.status().message());
    }
  }
  if (!found->second.ok()) return found->second.status().clone();
  return found->second.value().get();
}

const Arena* Arena::find(uint64_t incarnation) {
  const std::lock_guard lock(registry().mutex);
  for (const auto& [device, arena] : registry().arenas) {
    if (arena.ok() && arena.value()->incarnation_ == incarnation) return arena.value().get();
  }
  return nullptr;
}

void Arena::give_back_unused() noexcept {
  std::vector<Arena*> arenas;
  {
    const std::lock_guard lock(registry().mutex);
    for (const auto& [device, arena] : registry().arenas) {
      if (arena.ok()) arenas.push_back(arena.value().get());
    }
  }
  for (Arena* arena : arenas) {
    if (const Status given = arena->give_back(); !given.ok()) log::info(given.message());
  }
}

Arena::Arena(int device, size_t num_units, cuda::PinnedMemory controls)
    : device_(device),
      num_bytes_(num_units * SliceAllocator::kUnit),
      controls_(std::move(controls)),
      incarnation_(random_number()),
      slices_(kNoticeTableBytes, num_bytes_) {}

Result<std::unique_ptr<Arena>> Arena::create(int device) {
  const size_t num_units = std::stoul(config::text("AXON_ARENA_MB"));
  if (num_units < 2) {
    return Status(ErrorCode::kResourceExhausted,
                  "AXON_ARENA_MB must be at least 2, and is " + std::to_string(num_units));
  }
  const cuda::RelaxedCapture relaxed;
  const cuda::DeviceGuard guard(device);
  Result<cuda::PinnedMemory> controls = cuda::PinnedMemory::allocate(2 * num_units * sizeof(cuda::TeamControl));
  if (!controls.ok()) return std::move(controls.status());
  std::unique_ptr<Arena> arena(new Arena(device, num_units, std::move(controls).value()));
  AXON_TRY(arena->open());
  return arena;
}

Status Arena::open() {
  Result<cuda::DeviceUuid> uuid = cuda::uuid_of(device_);
  if (!uuid.ok()) return std::move(uuid.status());
  uuid_ = uuid.value();
  for (std::optional<cuda::Stream>* stream : {&upkeep_, &detach_stream_, &copy_out_}) {
    Result<cuda::Stream> made = cuda::Stream::create();
    if (!made.ok()) return std::move(made.status());
    *stream = std::move(made).value();
  }
  Result<std::unique_ptr<Registrations>> registrations = Registrations::create(device_, incarnation_, launches_);
  if (!registrations.ok()) return std::move(registrations.status());
  registrations_ = std::move(registrations).value();
  PeerProcess::allow_peers();
  return Status();
}

Status Arena::make_memory() {
  Result<cuda::SharedMemory> memory = cuda::SharedMemory::allocate(device_, num_bytes_);
  if (!memory.ok()) return std::move(memory.status());
  Result<FileDescriptor> shared = memory.value().share();
  if (!shared.ok()) return std::move(shared.status());
  memory_ = std::move(memory).value();
  shared_ = std::move(shared).value();
  ++edition_;
  AXON_TRY(clear(0, kNoticeTableBytes));
  AXON_TRY(copy_async(memory_->data(), &kDetached, sizeof kDetached, *upkeep_));
  return upkeep_->view().synchronize();
}

// While no slice is taken, no peer writes into the arena: the slice users have sent their notices after their last
// kernels. This rank no longer writes into the peers' arenas either, once its own notices are sent.
Status Arena::give_back() {
  const cuda::RelaxedCapture relaxed;
  const cuda::DeviceGuard guard(device_);
  const std::lock_guard reading(copy_out_mutex_);
  const std::lock_guard lock(mutex_);
  if (!memory_) return Status();
  AXON_TRY(collect_until([this] { return slices_.num_bytes_taken() == 0; }));
  if (slices_.num_bytes_taken() != 0) return Status();
  AXON_TRY(detach_stream_->view().synchronize());
  for (auto& [incarnation, view] : views_) view->unmap();
  memory_.reset();
  shared_ = FileDescriptor();
  return Status();
}

Status Arena::copy_out(std::span<const CopyOut> copies, const std::function<bool()>& is_taken) {
  const cuda::RelaxedCapture relaxed;
  const cuda::DeviceGuard guard(device_);
  const std::lock_guard lock(copy_out_mutex_);
  if (!is_taken()) return Status(ErrorCode::kAborted, "the slices are not taken any more");
  for (const CopyOut& copy : copies) AXON_TRY(copy_async(copy.to, copy.from, copy.num_bytes, *copy_out_));
  return copy_out_->view().synchronize();
}

Status Arena::clear(size_t offset, size_t num_bytes) const {
  AXON_CUDA_TRY(cudaMemsetAsync(memory_->data() + offset, 0, num_bytes, upkeep_->view().get()));
  return Status();
}

Status Arena::prepare(int num_ranks) {
  const cuda::RelaxedCapture relaxed;
  const cuda::DeviceGuard guard(device_);
  const std::lock_guard lock(mutex_);
  if (prepared_.contains(num_ranks)) return Status();
  AXON_TRY(kernels::load_kernels(num_ranks));
  prepared_.insert(num_ranks);
  return Status();
}

Result<ArenaSlice> Arena::take() {
  const cuda::RelaxedCapture relaxed;
  const cuda::DeviceGuard guard(device_);
  const std::lock_guard lock(mutex_);
  if (!memory_) AXON_TRY(make_memory());
  Result<std::optional<ArenaSlice>> found = find_room();
  forget_ended();  // after the notices have been collected
  if (!found.ok()) return std::move(found.status());
  const std::optional<ArenaSlice>& slice = found.value();
  if (!slice) {
    const Status full(ErrorCode::kResourceExhausted,
                      "the arena of GPU " + std::to_string(device_) +
                          " is full: " + std::to_string(slices_.num_bytes_taken() >> 20) +
                          " MiB are used by groups, by groups that some ranks have not destroyed yet, or by CUDA "
                          "graphs; set AXON_ARENA_MB to change its size");
    if (!std::exchange(has_told_, true)) log::info(full.message() + ". Groups formed later use host memory");
    return full.clone();
  }
  std::memset(controls(*slice), 0, 2 * sizeof(cuda::TeamControl));
  AXON_TRY(clear(row_of(*slice) * sizeof(Row), sizeof(Row)));
  AXON_TRY(clear(slice->offset, slice->num_bytes));
  AXON_TRY(upkeep_->view().synchronize());
  return *slice;
}

Result<std::optional<ArenaSlice>> Arena::find_room() {
  std::optional<ArenaSlice> slice;
  AXON_TRY(collect_until([&] {
    slice = slices_.take();
    return slice.has_value();
  }));
  return slice;
}

// When a group was just destroyed on all ranks, its last kernel may not have detached from it yet.
template <typename Predicate>
Status Arena::collect_until(Predicate is_enough) {
  const Clock::time_point deadline = Clock::now() + kLongestSearch;
  while (true) {
    AXON_TRY(collect());
    if (is_enough() || detached_.empty() || Clock::now() >= deadline) return Status();
    std::this_thread::sleep_for(kSearchInterval);
  }
}

// Sends the notices of groups whose graphs are gone, then takes back the slices that all slice users have left.
Status Arena::collect() {
  const auto told = std::ranges::partition(lingering_, has_graphs);
  for (DetachNotice& notice : told) {
    (notify_owners(notice).ok() ? detached_ : lost_).push_back(std::move(notice));
  }
  lingering_.erase(told.begin(), told.end());
  if (detached_.empty()) return Status();
  std::vector<Row> table(num_bytes_ / SliceAllocator::kUnit);
  AXON_TRY(copy_async(table.data(), memory_->data(), table.size() * sizeof(Row), *upkeep_));
  AXON_TRY(upkeep_->view().synchronize());
  for (DetachNotice& notice : detached_) {
    const Row& row = table[row_of(notice.slice)];
    std::erase_if(notice.slice_users, [&](const PeerSlice& slice_user) {
      return row[static_cast<size_t>(slice_user.rank)] == kDetached || slice_user.arena->is_gone();
    });
    if (notice.slice_users.empty()) slices_.give_back(notice.slice);
  }
  std::erase_if(detached_, [](const DetachNotice& notice) { return notice.slice_users.empty(); });
  return Status();
}

void Arena::detach(DetachNotice notice, std::span<const cuda::StreamView> streams) {
  const cuda::RelaxedCapture relaxed;
  const cuda::DeviceGuard guard(device_);
  const std::lock_guard lock(mutex_);
  if (!follow(streams).ok()) return lost_.push_back(std::move(notice));
  if (has_graphs(notice)) return lingering_.push_back(std::move(notice));
  (notify_owners(notice).ok() ? detached_ : lost_).push_back(std::move(notice));
}

// Notices sent from here on follow the work that the streams hold. A stream under capture holds no work but that of its
// graph.
Status Arena::follow(std::span<const cuda::StreamView> streams) {
  Result<cuda::Event> event = cuda::Event::create_untimed();
  if (!event.ok()) return std::move(event.status());
  for (const cuda::StreamView stream : streams) {
    const Result<uint64_t> capture = capture_of(stream);
    if (!capture.ok() || capture.value() != 0) continue;
    AXON_TRY(stream.record(event.value()));
    AXON_TRY(detach_stream_->view().wait(event.value()));
  }
  return Status();
}

Status Arena::notify_owners(const DetachNotice& notice) {
  for (const PeerSlice& owner : notice.slice_owners) {
    Row* const table = reinterpret_cast<Row*>(owner.arena->data());
    uint32_t* const flag = &table[row_of(owner.slice)][static_cast<size_t>(notice.rank)];
    AXON_TRY(copy_async(flag, memory_->data(), sizeof kDetached, *detach_stream_));
  }
  return Status();
}

DeviceAddress Arena::address_of(ArenaSlice slice) const {
  return {.incarnation = incarnation_,
          .host = this_host(),
          .pid = getpid(),
          .descriptor = shared_.get(),
          .device_uuid = uuid_,
          .arena_num_bytes = memory_->num_bytes(),
          .edition = edition_,
          .export_table = registrations_->export_table_address(),
          .slice = slice};
}

Result<std::shared_ptr<const ArenaView>> Arena::view_of(const DeviceAddress& address) {
  const std::lock_guard lock(mutex_);
  const auto [found, is_new] = views_.try_emplace(address.incarnation);
  if (is_new) found->second = std::make_shared<ArenaView>();
  ArenaView& view = *found->second;
  if (!view.shows(address)) {
    if (Status mapped = map(view, address); !mapped.ok()) {
      if (is_new) views_.erase(found);
      return mapped;
    }
  }
  if (is_new) view.follow(*registrations_, address);
  return std::shared_ptr<const ArenaView>(found->second);
}

// Unmaps the memory of ended processes, once no group uses it and all notices to them have been sent.
void Arena::forget_ended() {
  if (!detach_stream_->view().is_idle()) return;
  std::erase_if(views_, [this](const auto& known) {
    const std::shared_ptr<ArenaView>& view = known.second;
    if (view.use_count() != 1 || !view->is_gone()) return false;
    view->unmap();
    return true;
  });
}

// Kernels rely on lines of 128 bytes that arrive whole (kernels/ll128). NVLink keeps them whole, and PCIe need not.
Status Arena::map(ArenaView& view, const DeviceAddress& address) const {
  AXON_TRY(cuda::require_nvlink(uuid_, address.device_uuid));
  const cuda::RelaxedCapture relaxed;
  const cuda::DeviceGuard guard(device_);
  const Arena* own = find(address.incarnation);
  if (own == nullptr) return view.import(address, device_);
  AXON_TRY(own->memory_->grant(device_));
  view.show(own->data(), address);
  return Status();
}

cuda::TeamControl* Arena::controls(ArenaSlice slice) const noexcept {
  return reinterpret_cast<cuda::TeamControl*>(controls_.data()) + 2 * row_of(slice);
}

}  // namespace axon::ipc
