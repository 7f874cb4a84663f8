#include "engine/status_page.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "engine/operation.hpp"

namespace axon::engine {

static constexpr auto kRelaxed = std::memory_order_relaxed;

// Runs `write` between two changes of the version, and returns the new one. On x86 the fence emits no instruction.
template <typename Write>
static uint32_t write_versioned(std::atomic<uint32_t>& version, const Write& write) noexcept {
  const uint32_t before = version.load(kRelaxed) & ~1u;
  version.store(before + 1, kRelaxed);
  std::atomic_thread_fence(std::memory_order_release);
  write();
  version.store(before + 2, std::memory_order_release);
  return before + 2;
}

// Keeps the end of a long text: it has the line of a call site, and the number of a group's name.
template <size_t kNumBytes>
static void assign(StatusText<kNumBytes>& to, std::string_view text) noexcept {
  if (text.size() > kNumBytes) text.remove_prefix(text.size() - kNumBytes);
  to.length = static_cast<uint32_t>(text.size());
  std::memcpy(to.bytes.data(), text.data(), text.size());
}

static int64_t nanoseconds(sync::Clock::time_point time) noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

static void assign_shape(CallSlot& slot, const Shape& shape) noexcept {
  slot.num_dimensions = shape.num_dimensions;
  for (size_t i = 0; i < shape.num_dimensions; ++i) slot.sizes[i] = shape.sizes[i];
}

CallRecord record_of(const CallSlot& slot) noexcept {
  CallRecord record;
  record.kind = static_cast<transport::OperationKind>(slot.kind);
  record.direction = static_cast<Direction>(slot.direction);
  record.dtype = static_cast<DataType>(slot.dtype);
  record.reduction = static_cast<Reduction>(slot.reduction);
  record.root = slot.root;
  record.peer = slot.peer;
  record.tag = slot.tag;
  record.sequence = slot.sequence;
  record.replay = {.call = slot.replay_call, .launch = slot.replay_launch};
  record.shape = {.sizes = slot.sizes,
                  .num_dimensions = std::min<uint8_t>(slot.num_dimensions, Shape::kMostDimensions)};
  record.called_at = sync::Clock::time_point(std::chrono::nanoseconds(slot.called_at_ns));
  return record;
}

static void write_record(CallSlot& slot, const CallRecord& record) noexcept {
  write_versioned(slot.version, [&] {
    slot.state.store(CallState::kLaunched, kRelaxed);
    slot.called_at_ns = nanoseconds(record.called_at);
    slot.sequence = record.sequence;
    slot.replay_call = 0;
    slot.replay_launch = 0;
    slot.tag = record.tag;
    slot.root = record.root;
    slot.peer = record.peer;
    slot.kind = static_cast<uint8_t>(record.kind);
    slot.direction = static_cast<uint8_t>(record.direction);
    slot.dtype = static_cast<uint8_t>(record.dtype);
    slot.reduction = static_cast<uint8_t>(record.reduction);
    assign_shape(slot, record.shape);
    assign(slot.call_site, record.call_site);
  });
}

static uint64_t waiter_of(uint32_t version, uint32_t thread) noexcept {
  return uint64_t{version} << 32 | thread;
}

std::shared_ptr<StatusPage> StatusPage::make() noexcept {
  Result<SharedPages> pages = SharedPages::make(sizeof(StatusMemory), kStatusPageName);
  try {
    if (pages.ok()) {
      pages.value().withhold_from_forks();
      return std::make_shared<StatusPage>(std::move(pages).value());
    }
    log::info("python -m torch_axon.doctor --ps will not show this process: " + pages.status().message());
  } catch (const std::bad_alloc&) {
  }
  return nullptr;
}

StatusPage::StatusPage(SharedPages pages) noexcept : pages_(std::move(pages)) {
  StatusHeader& header = memory().header;
  header.version = kStatusVersion;
  header.num_bytes = sizeof(StatusMemory);
  header.pid = getpid();
  std::atomic_thread_fence(std::memory_order_release);
  header.magic = kStatusMagic;
}

GroupSlot* StatusPage::take() noexcept {
  for (uint32_t free = free_.load(kRelaxed); free != 0;) {
    const uint32_t bit = free & (~free + 1);
    if (free_.compare_exchange_weak(free, free & ~bit, std::memory_order_acquire, kRelaxed)) {
      return &memory().groups[static_cast<size_t>(std::countr_zero(bit))];
    }
  }
  memory().header.num_left_out.fetch_add(1, kRelaxed);
  return nullptr;
}

void StatusPage::put_back(GroupSlot* slot) noexcept {
  if (slot == nullptr) {
    memory().header.num_left_out.fetch_sub(1, kRelaxed);
  } else {
    free_.fetch_or(1u << (slot - memory().groups.data()), std::memory_order_release);
  }
}

GroupStatus::GroupStatus(std::shared_ptr<StatusPage> page, const GroupFacts& facts)
    : page_(std::move(page)),
      shown_(page_ == nullptr ? nullptr : page_->take()),
      unseen_(shown_ == nullptr ? std::make_unique<GroupSlot>() : nullptr),
      slot_(shown_ == nullptr ? *unseen_ : *shown_) {
  // A reader that sees the new version of the group sees nothing of the one before it.
  write_versioned(slot_.version, [&] {
    slot_.is_used = 1;
    slot_.identity = facts.identity;
    slot_.rank = facts.rank;
    slot_.size = facts.size;
    slot_.num_on_host = facts.num_on_host;
    assign(slot_.name, facts.name);
    slot_.failure.length = 0;
    for (std::atomic<uint32_t>* count : {&slot_.num_unlisted, &slot_.num_launched}) count->store(0, kRelaxed);
    for (CallSlot& call : slot_.calls) call.state.store(CallState::kNone, kRelaxed);
    for (CallSlot* call : {&slot_.launched, &slot_.message, &slot_.captured})
      call->state.store(CallState::kNone, kRelaxed);
    slot_.device.num_ranks = 0;
    slot_.device.read_at_ns = 0;
  });
}

GroupStatus::~GroupStatus() {
  if (page_ == nullptr || page_->is_inherited()) return;
  hide();
  if (shown_ != nullptr) page_->put_back(shown_);
}

// The object lives until the engine's next tick, which an idle process may delay. The doctor reports groups without a
// slot, so a group that is gone must not count as one until then.
void GroupStatus::hide() noexcept {
  if (slot_.is_used == 0) return;
  write_versioned(slot_.version, [&] { slot_.is_used = 0; });
  if (page_ != nullptr && shown_ == nullptr) page_->put_back(nullptr);
}

CallRecord GroupStatus::latest() const noexcept {
  return latest_ == kNoCall ? CallRecord() : record_of(slot_.calls[latest_]);
}

// Tokens of two slots differ in their lower half.
CallSlot* GroupStatus::slot_of(StatusToken token) const noexcept {
  if (token == 0) return nullptr;
  CallSlot& slot = slot_.calls[static_cast<uint32_t>(token) - 1];
  return slot.version.load(kRelaxed) == token >> 32 ? &slot : nullptr;
}

// A collective takes the slot of the one before it, if that has ended, or if there is no other slot.
uint32_t GroupStatus::take_call(bool is_latest) noexcept {
  uint32_t index = kNoCall;
  const bool has_former = is_latest && latest_ != kNoCall;
  const bool former_runs = has_former && slot_.calls[latest_].state.load(kRelaxed) < CallState::kFinished;
  if (has_former && !former_runs) {
    index = latest_;
  } else if (free_calls_ != 0) {
    index = static_cast<uint32_t>(std::countr_zero(free_calls_));
    free_calls_ &= ~(1u << index);
  } else {
    slot_.num_unlisted.fetch_add(1, kRelaxed);  // this call, or the one whose slot it takes
    if (!is_latest) return kNoCall;
    index = has_former ? latest_ : 0;
  }
  if (is_latest) latest_ = index;
  return index;
}

StatusToken GroupStatus::begin(const Operation& operation) noexcept {
  const bool is_latest = operation.sequence() != 0;
  const uint32_t index = take_call(is_latest);
  if (index == kNoCall) return 0;
  CallSlot& slot = slot_.calls[index];
  const uint32_t version = write_versioned(slot.version, [&] {
    const collectives::CollectiveArguments& arguments = operation.arguments;
    slot.state.store(CallState::kRunning, kRelaxed);
    slot.called_at_ns = nanoseconds(operation.called_at());
    slot.sequence = operation.sequence();
    slot.replay_call = operation.replay.call;
    slot.replay_launch = operation.replay.launch;
    slot.tag = operation.tag;
    slot.root = arguments.root;
    slot.peer = operation.peer;
    slot.kind = static_cast<uint8_t>(arguments.kind);
    slot.direction = static_cast<uint8_t>(operation.direction);
    slot.dtype = static_cast<uint8_t>(arguments.dtype);
    slot.reduction = static_cast<uint8_t>(arguments.reduction);
    assign_shape(slot, operation.shape);
    slot.call_site.length = 0;
    if (!operation.call_site.empty()) [[unlikely]]
      assign(slot.call_site, operation.call_site);
  });
  return uint64_t{version} << 32 | (index + 1);
}

// The latest collective keeps its slot.
void GroupStatus::end(StatusToken token, bool ok) noexcept {
  CallSlot* const slot = slot_of(token);
  if (slot == nullptr) [[unlikely]] {
    slot_.num_unlisted.fetch_sub(1, kRelaxed);
    return;
  }
  slot->state.store(ok ? CallState::kFinished : CallState::kFailed, kRelaxed);
  const uint32_t index = static_cast<uint32_t>(token) - 1;
  if (index != latest_) free_calls_ |= 1u << index;
}

void GroupStatus::note_awaits_device(StatusToken token, bool awaits) noexcept {
  CallSlot* const slot = slot_of(token);
  if (slot != nullptr) slot->state.store(awaits ? CallState::kAwaitsDevice : CallState::kRunning, kRelaxed);
}

void GroupStatus::note_waiter(StatusToken token, uint32_t thread) noexcept {
  CallSlot* const slot = slot_of(token);
  if (slot != nullptr) slot->waiter.store(waiter_of(static_cast<uint32_t>(token >> 32), thread), kRelaxed);
}

void GroupStatus::fail(std::string_view reason) noexcept {
  if (slot_.failure.length != 0) return;
  static constexpr size_t kMost = std::tuple_size_v<decltype(slot_.failure.bytes)>;
  const std::string_view beginning = reason.substr(0, std::min(reason.size(), kMost));
  write_versioned(slot_.failure_version, [&] { assign(slot_.failure, beginning); });
}

void GroupStatus::note_launch(const CallRecord& record, uint32_t num_launched) noexcept {
  write_record(slot_.launched, record);
  slot_.num_launched.store(num_launched, kRelaxed);
}

void GroupStatus::note_capture(const CallRecord& record) noexcept {
  write_record(slot_.captured, record);
}

void GroupStatus::note_message(const CallRecord& record) noexcept {
  write_record(slot_.message, record);
}

// A time of 0 says that the ranks can be asked for.
void GroupStatus::note_progress(std::span<const DeviceProgress> ranks, sync::Clock::time_point read_at) noexcept {
  DeviceSlot& device = slot_.device;
  write_versioned(device.version, [&] {
    device.num_ranks = static_cast<uint32_t>(std::min(ranks.size(), DeviceSlot::kMostRanks));
    device.read_at_ns = nanoseconds(read_at);
    for (size_t index = 0; index < device.num_ranks; ++index) {
      device.ranks[index].rank = ranks[index].rank;
      device.ranks[index].num_entered = ranks[index].num_entered;
      assign(device.ranks[index].call, ranks[index].call);
    }
  });
}

uint32_t kernel_thread() noexcept {
  struct Known {
    uint32_t born_after;
    uint32_t id;
  };
  static thread_local Known known{.born_after = ~0u, .id = 0};
  if (known.born_after != num_forks()) [[unlikely]]
    known = {.born_after = num_forks(), .id = static_cast<uint32_t>(gettid())};
  return known.id;
}

}  // namespace axon::engine
