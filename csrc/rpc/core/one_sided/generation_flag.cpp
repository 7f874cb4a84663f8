#include "rpc/core/one_sided/generation_flag.hpp"

#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "base/random.hpp"

namespace axon::rpc {

namespace {

struct Words {
  std::mutex mutex;  // guards the following members
  std::deque<std::atomic<uint64_t>> all;
  std::vector<std::atomic<uint64_t>*> free;
};

Words& words() {
  static auto* const kept = new Words;  // never destroyed: peers may read it until the process ends
  return *kept;
}

std::atomic<uint64_t>* unused_word() {
  const std::lock_guard lock(words().mutex);
  if (words().free.empty()) return &words().all.emplace_back(0);
  std::atomic<uint64_t>* const word = words().free.back();
  words().free.pop_back();
  return word;
}

}  // namespace

GenerationFlag::GenerationFlag(std::shared_ptr<MappableMemory> memory)
    : memory_(std::move(memory)), word_(memory_ ? memory_->take_flag() : nullptr), value_(random_number() | 1) {
  if (word_ == nullptr) {
    memory_ = nullptr;
    word_ = unused_word();
  }
  word_->store(value_, std::memory_order_relaxed);  // a message publishes it
}

void GenerationFlag::give_back() noexcept {
  clear();
  std::atomic<uint64_t>* const word = std::exchange(word_, nullptr);
  if (word == nullptr) return;
  if (memory_) {
    memory_->give_back(word);
    memory_ = nullptr;
    return;
  }
  const std::lock_guard lock(words().mutex);
  words().free.push_back(word);
}

}  // namespace axon::rpc
