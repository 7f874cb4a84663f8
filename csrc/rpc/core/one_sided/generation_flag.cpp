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
    : word_(unused_word()), value_(random_number() | 1), memory_(std::move(memory)) {
  word_->store(value_, std::memory_order_relaxed);  // a message publishes it, and the one below
  if (memory_) number_in_memory_ = memory_->take_flag();
  if (number_in_memory_ != 0) memory_->flag(number_in_memory_).store(value_, std::memory_order_relaxed);
}

GenerationFlag::~GenerationFlag() {
  clear();
  forget_memory();
  const std::lock_guard lock(words().mutex);
  words().free.push_back(word_);
}

std::optional<MappableMemory::Location> GenerationFlag::location() const noexcept {
  if (number_in_memory_ == 0) return std::nullopt;
  return memory_->location(number_in_memory_);
}

// Pairs with the copies of peers, which read the flag after the bytes. A peer that has read bytes which were written
// after this finds the flag cleared.
void GenerationFlag::clear() noexcept {
  word_->store(0, std::memory_order_relaxed);
  if (number_in_memory_ != 0) memory_->flag(number_in_memory_).store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

void GenerationFlag::forget_memory() noexcept {
  if (number_in_memory_ != 0) memory_->give_back(std::exchange(number_in_memory_, 0));
  memory_ = nullptr;
}

}  // namespace axon::rpc
