#include "ipc/stream_marker.hpp"

#include <deque>
#include <mutex>
#include <vector>

#include "cuda/capture.hpp"
#include "cuda/memops.hpp"
#include "cuda/memory.hpp"

namespace axon::ipc {

namespace {

constexpr size_t kPageBytes = 4096;
constexpr uint32_t kPassed = 1;

// Flags in pinned memory, which all devices of the process can write.
class Flags {
 public:
  // Never destroyed: streams may write to the flags until the process exits.
  static Flags& instance() {
    static auto* flags = new Flags;
    return *flags;
  }

  Result<std::atomic<uint32_t>*> take() {
    while (true) {
      if (std::atomic<uint32_t>* const flag = find_passed()) return flag;
      AXON_TRY(add_page());
    }
  }

  // May be called before the stream has passed the flag.
  void give_back(std::atomic<uint32_t>* flag) {
    const std::lock_guard lock(mutex_);
    free_.push_back(flag);
  }

 private:
  std::atomic<uint32_t>* find_passed() {
    const std::lock_guard lock(mutex_);
    for (size_t tries = 0; tries < free_.size(); ++tries) {
      std::atomic<uint32_t>* const flag = free_.front();
      free_.pop_front();
      if (flag->load(std::memory_order_acquire) == kPassed) return flag;
      free_.push_back(flag);
    }
    return nullptr;
  }

  // The driver may be slow, so a thread that only gives back a flag must not wait for this.
  Status add_page() {
    const cuda::RelaxedCapture beside_captures;
    Result<cuda::PinnedMemory> page = cuda::PinnedMemory::allocate(kPageBytes);
    if (!page.ok()) return std::move(page.status());
    const std::lock_guard lock(mutex_);
    auto* const flags = reinterpret_cast<std::atomic<uint32_t>*>(page.value().data());
    for (size_t i = 0; i < kPageBytes / sizeof *flags; ++i) {
      flags[i].store(kPassed, std::memory_order_relaxed);
      free_.push_back(&flags[i]);
    }
    pages_.push_back(std::move(page).value());
    return Status();
  }

  std::mutex mutex_;  // guards all members below
  std::vector<cuda::PinnedMemory> pages_;
  std::deque<std::atomic<uint32_t>*> free_;
};

}  // namespace

Result<StreamMarker> StreamMarker::make() {
  Result<std::atomic<uint32_t>*> flag = Flags::instance().take();
  if (!flag.ok()) return std::move(flag.status());
  return StreamMarker(flag.value());
}

Status StreamMarker::place(cuda::StreamView stream) {
  flag_->store(0, std::memory_order_relaxed);
  Status enqueued = write_flag(stream, flag_, kPassed);
  if (!enqueued.ok()) flag_->store(kPassed, std::memory_order_relaxed);
  return enqueued;
}

Result<StreamMarker> StreamMarker::set(cuda::StreamView stream) {
  Result<StreamMarker> marker = make();
  if (!marker.ok()) return marker;
  if (Status placed = marker.value().place(stream); !placed.ok()) return placed;
  return marker;
}

StreamMarker::~StreamMarker() {
  if (flag_ != nullptr) Flags::instance().give_back(flag_);
}

}  // namespace axon::ipc
