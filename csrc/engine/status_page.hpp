// Shows the groups of an engine and their calls to the doctor, in memory that it reads without this process's help.
//
//   std::shared_ptr<StatusPage> page = StatusPage::make();
//   GroupStatus status(page, {.name = name, .rank = rank, …});   // until it is destroyed
//   status.begin(operation);  …  status.end(operation, outcome);
//
// Writing a call costs some tens of plain stores. What exceeds the page's bounds is counted there instead of shown.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/forks.hpp"
#include "base/status.hpp"
#include "engine/status_layout.hpp"
#include "memory/shared_pages.hpp"

namespace axon::engine {

class Operation;

// The page of an engine. Thread-safe.
class StatusPage {
 public:
  // Returns null, and logs why, if there is no memory or no file descriptor left: groups are not shown then.
  static std::shared_ptr<StatusPage> make() noexcept;
  explicit StatusPage(SharedPages pages) noexcept;

  // The descriptor by which readers find the page.
  int descriptor() const noexcept { return pages_.descriptor(); }
  // From here on no reader finds it. Writers may still write.
  void hide() noexcept { pages_.close(); }
  // Returns whether this process is a fork of the one that the page describes. It must not write then.
  bool is_inherited() const noexcept { return num_forks() != born_after_; }

  // Returns how often readers have asked for the progress of GPUs.
  uint32_t num_requests() const noexcept { return memory().header.num_requests.load(std::memory_order_relaxed); }

  // Returns a slot, which is the caller's until it is returned, or null if all are taken, which the page counts.
  GroupSlot* take() noexcept;
  // `slot` may be null, as take() has returned it.
  void put_back(GroupSlot* slot) noexcept;

 private:
  StatusMemory& memory() const noexcept { return *reinterpret_cast<StatusMemory*>(pages_.data()); }

  SharedPages pages_;
  const uint32_t born_after_ = num_forks();
  std::atomic<uint32_t> free_{~0u};  // one bit per slot; relaxed: a slot's version publishes its contents
};
static_assert(StatusMemory::kMostGroups == 32);  // bits of free_

// Where an operation is on the page: 0 if it is not there, otherwise version << 32 | 1 + the index of its slot. Any
// thread may compare it with a slot's version, which differs once the slot shows another call.
using StatusToken = uint64_t;

struct GroupFacts {
  std::string_view name;
  uint64_t identity = 0;
  int rank = 0;
  int size = 0;
  int num_on_host = 0;
};

// How far a rank is, as a GPU on its host has seen it.
struct DeviceProgress {
  int rank = 0;
  uint32_t num_entered = 0;  // collectives
  std::string call;          // the last of them, or empty
};

// The part of the page that one group writes. Progress owner only, except for what is marked.
class GroupStatus {
 public:
  // `page` is shared by the engine and the status of each of its groups, which may outlive the engine's use of it.
  // Null: the status is written to memory that no process reads.
  GroupStatus(std::shared_ptr<StatusPage> page, const GroupFacts& facts);
  ~GroupStatus();
  GroupStatus(const GroupStatus&) = delete;
  GroupStatus& operator=(const GroupStatus&) = delete;

  // An operation begins. The latest collective always has a slot. Of the others, the oldest have one.
  StatusToken begin(const Operation& operation) noexcept;
  // Returns the latest collective, without its call site.
  CallRecord latest() const noexcept;
  // It has ended, successfully or not.
  void end(StatusToken token, bool ok) noexcept;
  // Tells whether it waits for nothing but its GPU.
  void note_awaits_device(StatusToken token, bool awaits) noexcept;
  // Tells which thread waits for it, or 0.
  void note_waiter(StatusToken token, uint32_t thread) noexcept;
  // The first failure counts.
  void fail(std::string_view reason) noexcept;
  // The group is no more: the page shows it no longer. Threads may still call the other functions.
  void hide() noexcept;

  // One thread at a time: the GPU is given a collective, or a graph captures it.
  void note_launch(const CallRecord& record, uint32_t num_launched) noexcept;
  void note_capture(const CallRecord& record) noexcept;
  void note_message(const CallRecord& record) noexcept;

  // Any thread, one at a time.
  uint32_t num_requests() const noexcept { return page_ == nullptr ? 0 : page_->num_requests(); }
  void note_progress(std::span<const DeviceProgress> ranks, sync::Clock::time_point read_at) noexcept;

 private:
  static constexpr uint32_t kAllFree = (1u << GroupSlot::kMostCalls) - 1;
  static constexpr uint32_t kNoCall = GroupSlot::kMostCalls;

  CallSlot* slot_of(StatusToken token) const noexcept;
  uint32_t take_call(bool is_latest) noexcept;

  const std::shared_ptr<StatusPage> page_;
  GroupSlot* const shown_;                   // null: it is not on the page
  const std::unique_ptr<GroupSlot> unseen_;  // in place of a slot of the page
  GroupSlot& slot_;                          // one of the two
  uint32_t free_calls_ = kAllFree;           // one bit per slot
  uint32_t latest_ = kNoCall;                // the slot of the latest collective, which stays taken after its end
};

// The id of this thread in the kernel, which debuggers and /proc name.
uint32_t kernel_thread() noexcept;

}  // namespace axon::engine
