#include "rpc/core/one_sided/generation_flag.hpp"

#include <deque>
#include <mutex>
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

GenerationFlag::GenerationFlag() : word_(unused_word()), value_(random_number() | 1) {
  word_->store(value_, std::memory_order_relaxed);  // a message publishes it
}

GenerationFlag::~GenerationFlag() {
  clear();
  const std::lock_guard lock(words().mutex);
  words().free.push_back(word_);
}

}  // namespace axon::rpc
