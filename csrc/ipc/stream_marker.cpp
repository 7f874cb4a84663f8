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
class Words {
 public:
  // Never destroyed: streams may write to the flags until the process exits.
  static Words& instance() {
    static auto* words = new Words;
    return *words;
  }

  Result<std::atomic<uint32_t>*> take() {
    while (true) {
      if (std::atomic<uint32_t>* const word = find_passed()) return word;
      AXON_TRY(add_page());
    }
  }

  // May be called before the stream has passed the flag.
  void give_back(std::atomic<uint32_t>* word) {
    const std::lock_guard lock(mutex_);
    free_.push_back(word);
  }

 private:
  std::atomic<uint32_t>* find_passed() {
    const std::lock_guard lock(mutex_);
    for (size_t tries = 0; tries < free_.size(); ++tries) {
      std::atomic<uint32_t>* const word = free_.front();
      free_.pop_front();
      if (word->load(std::memory_order_acquire) == kPassed) return word;
      free_.push_back(word);
    }
    return nullptr;
  }

  // The driver may be slow, so a thread that only gives back a flag must not wait for this.
  Status add_page() {
    const cuda::RelaxedCapture beside_captures;
    Result<cuda::PinnedMemory> page = cuda::PinnedMemory::allocate(kPageBytes);
    if (!page.ok()) return std::move(page.status());
    const std::lock_guard lock(mutex_);
    auto* const words = reinterpret_cast<std::atomic<uint32_t>*>(page.value().data());
    for (size_t i = 0; i < kPageBytes / sizeof *words; ++i) {
      words[i].store(kPassed, std::memory_order_relaxed);
      free_.push_back(&words[i]);
    }
    pages_.push_back(std::move(page).value());
    return Status();
  }

  std::mutex mutex_;  // guards all members below
  std::vector<cuda::PinnedMemory> pages_;
  std::deque<std::atomic<uint32_t>*> free_;
};

}  // namespace

Result<StreamMarker> StreamMarker::set(cuda::StreamView stream) {
  Result<std::atomic<uint32_t>*> word = Words::instance().take();
  if (!word.ok()) return std::move(word.status());
  word.value()->store(0, std::memory_order_relaxed);
  StreamMarker marker(word.value());
  Status enqueued = write_word(stream, word.value(), kPassed);
  if (enqueued.ok()) return marker;
  word.value()->store(kPassed, std::memory_order_relaxed);
  return enqueued;
}

StreamMarker::~StreamMarker() {
  if (word_ != nullptr) Words::instance().give_back(word_);
}

}  // namespace axon::ipc
