#include "engine/status_reader.hpp"
#include "base/wrapping.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <system_error>

namespace axon::engine {

namespace {

// A writer that runs needs well below a microsecond for a part, unless it loses its core.
constexpr int kMostAttempts = 200;

class Page {
 public:
  explicit Page(int descriptor) noexcept : descriptor_(descriptor) {}

  bool read(void* to, size_t num_bytes, size_t offset) const noexcept {
    return pread(descriptor_, to, num_bytes, static_cast<off_t>(offset)) == static_cast<ssize_t>(num_bytes);
  }

  // Copies a part whose version is `version_offset` bytes from the page's beginning. Returns whether the copy is whole.
  // System calls keep their order, so the copy lies between the two reads of the version.
  bool read_whole(void* to, size_t num_bytes, size_t offset, size_t version_offset) const noexcept {
    for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
      uint32_t before = 0;
      uint32_t after = 0;
      if (!read(&before, sizeof before, version_offset) || !read(to, num_bytes, offset) ||
          !read(&after, sizeof after, version_offset)) {
        return false;
      }
      if (before == after && before % 2 == 0) return true;
      if (attempt % 8 == 7) usleep(100);
    }
    return false;
  }

 private:
  const int descriptor_;
};

template <size_t kNumBytes>
std::string text_of(const StatusText<kNumBytes>& text) {
  return {text.bytes.data(), std::min<size_t>(text.length, kNumBytes)};
}

const char* operation_of(const CallRecord& record) noexcept {
  if (record.direction == Direction::kCollective) return name_of(record.kind);
  return record.direction == Direction::kSend ? "send" : "receive";
}

// Returns a snapshot whose state is kNone if the slot shows no call.
CallSnapshot snapshot_of(const CallSlot& slot) {
  CallRecord record = record_of(slot);
  const std::string call_site = text_of(slot.call_site);
  record.call_site = call_site;
  const uint64_t waiter = slot.waiter.load(std::memory_order_relaxed);
  const bool is_of_this_call = waiter >> 32 == slot.version.load(std::memory_order_relaxed);
  return {.text = record.describe(),
          .operation = operation_of(record),
          .state = slot.state.load(std::memory_order_relaxed),
          .sequence = record.sequence,
          .peer = record.peer,
          .is_replay = static_cast<bool>(record.replay),
          .waiter = is_of_this_call ? static_cast<uint32_t>(waiter) : 0,
          .called_at_ns = slot.called_at_ns,
          .call_site = call_site};
}

bool is_running(const CallSnapshot& call) noexcept {
  return call.state == CallState::kRunning || call.state == CallState::kAwaitsDevice;
}

class GroupReader {
 public:
  GroupReader(const Page& page, size_t index)
      : page_(page), offset_(offsetof(StatusMemory, groups) + index * sizeof(GroupSlot)) {}

  // Returns nothing if the slot shows no group, or another one by now.
  std::optional<GroupSnapshot> read() {
    if (!read_facts() || slot_->is_used == 0) return std::nullopt;
    const uint32_t version = slot_->version.load(std::memory_order_relaxed);
    GroupSnapshot found;
    found.name = text_of(slot_->name);
    found.identity = slot_->identity;
    found.rank = slot_->rank;
    found.size = slot_->size;
    found.num_on_host = slot_->num_on_host;
    read_failure(found);
    read_calls(found);
    read_progress(found);
    if (!read_facts() || slot_->version.load(std::memory_order_relaxed) != version) return std::nullopt;
    return found;
  }

 private:
  bool read_facts() { return page_.read_whole(slot_.get(), offsetof(GroupSlot, failure_version), offset_, offset_); }

  void read_failure(GroupSnapshot& group) {
    const size_t begin = offset_ + offsetof(GroupSlot, failure);
    if (page_.read_whole(&slot_->failure, sizeof slot_->failure, begin, offset_ + offsetof(GroupSlot, failure_version)))
      group.failure = text_of(slot_->failure);
  }

  // Returns nothing if no call is shown.
  std::optional<CallSnapshot> read_call(GroupSnapshot& group, size_t offset) {
    CallSlot slot{};
    const size_t begin = offset_ + offset;
    if (!page_.read_whole(&slot, sizeof slot, begin, begin + offsetof(CallSlot, version))) {
      ++group.num_torn;
      return std::nullopt;
    }
    CallSnapshot found = snapshot_of(slot);
    return found.state == CallState::kNone ? std::nullopt : std::optional(std::move(found));
  }

  uint32_t read_count(size_t offset) const noexcept {
    uint32_t count = 0;
    return page_.read(&count, sizeof count, offset_ + offset) ? count : 0;
  }

  void read_progress(GroupSnapshot& group) {
    DeviceSlot& device = slot_->device;
    const size_t begin = offset_ + offsetof(GroupSlot, device);
    if (!page_.read_whole(&device, sizeof device, begin, begin + offsetof(DeviceSlot, version))) return;
    group.progress_read_at_ns = device.read_at_ns;
    const size_t num_ranks = std::min<size_t>(device.num_ranks, DeviceSlot::kMostRanks);
    for (const DeviceRank& each : std::span(device.ranks).first(num_ranks))
      group.progress.push_back({.rank = each.rank, .num_entered = each.num_entered, .call = text_of(each.call)});
  }

  void read_calls(GroupSnapshot& group) {
    group.launched = read_call(group, offsetof(GroupSlot, launched));
    group.message = read_call(group, offsetof(GroupSlot, message));
    group.captured = read_call(group, offsetof(GroupSlot, captured));
    group.num_launched = read_count(offsetof(GroupSlot, num_launched));
    group.num_unlisted = read_count(offsetof(GroupSlot, num_unlisted));
    for (uint32_t index = 0; index < GroupSlot::kMostCalls; ++index) {
      std::optional<CallSnapshot> call = read_call(group, offsetof(GroupSlot, calls) + index * sizeof(CallSlot));
      if (!call) continue;
      const bool is_later_replay =
          call->is_replay && (!group.replay || call->called_at_ns > group.replay->called_at_ns);
      if (is_later_replay) group.replay = call;
      const bool is_latest = call->sequence != 0 && (!group.latest || is_later(call->sequence, group.latest->sequence));
      if (is_latest) std::swap(call, group.latest);
      if (call && is_running(*call)) group.running.push_back(std::move(*call));
    }
    std::ranges::sort(group.running, {}, &CallSnapshot::called_at_ns);
  }

  const Page& page_;
  const size_t offset_;
  const std::unique_ptr<GroupSlot> slot_ = std::make_unique<GroupSlot>();
};

}  // namespace

// Two readers may write the same number. Their requests are then one.
void ask_for_progress(int descriptor) noexcept {
  const Page page(descriptor);
  StatusHeader header{};
  if (!page.read(&header, sizeof header, 0) || header.magic != kStatusMagic || header.version != kStatusVersion) return;
  const uint32_t next = header.num_requests.load(std::memory_order_relaxed) + 1;
  (void)!pwrite(descriptor, &next, sizeof next, offsetof(StatusHeader, num_requests));
}

Result<ProcessStatus> read_status(int descriptor) {
  const Page page(descriptor);
  StatusHeader header{};
  if (!page.read(&header, sizeof header, 0) || header.magic != kStatusMagic) {
    return Status(ErrorCode::kInvalidArgument, "it is not a status page of torch_axon");
  }
  if (header.version != kStatusVersion || header.num_bytes != sizeof(StatusMemory)) {
    return Status(ErrorCode::kInvalidArgument, "its torch_axon is another version, whose status page has version " +
                                                   std::to_string(header.version) + "; this one reads version " +
                                                   std::to_string(kStatusVersion));
  }
  ProcessStatus status{
      .pid = header.pid, .groups = {}, .num_left_out = header.num_left_out.load(std::memory_order_relaxed)};
  for (size_t index = 0; index < StatusMemory::kMostGroups; ++index) {
    if (std::optional<GroupSnapshot> group = GroupReader(page, index).read())
      status.groups.push_back(std::move(*group));
  }
  return status;
}

}  // namespace axon::engine
