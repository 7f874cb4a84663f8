// What any thread hands to the progress owner: a stack that is pushed to by all and taken whole, so that
// neither waits for the other.
#pragma once

#include <utility>

#include "base/sync.hpp"

namespace axon::engine {

// What is handed over, linked in a chain. Also what a driver hands back, to be told after the token has been released.
struct QueueNode {
  QueueNode* next = nullptr;
};

class Submissions {
 public:
  void push(QueueNode& item) noexcept {
    QueueNode* top = top_.load(std::memory_order_relaxed);
    do {
      item.next = top;
    } while (!top_.compare_exchange_weak(top, &item));
  }

  // Sequentially consistent: whoever has released the token looks after it, whoever has pushed tries to take it after.
  bool empty() const noexcept { return top_.load() == nullptr; }

  // A chain, in the order of their pushes.
  QueueNode* take_all() noexcept {
    if (top_.load(std::memory_order_relaxed) == nullptr) return nullptr;
    QueueNode* in_order = nullptr;
    for (QueueNode* latest = top_.exchange(nullptr); latest != nullptr;) {
      in_order = std::exchange(latest, std::exchange(latest->next, in_order));
    }
    return in_order;
  }

 private:
  sync::atomic<QueueNode*> top_{nullptr};
};

}  // namespace axon::engine
