// A lock-free stack of items that any thread pushes and the progress owner takes as a whole. Neither side waits for the
// other. Items stay owned by their submitters.
#pragma once

#include <utility>

#include "base/sync.hpp"

namespace axon::engine {

// A node of a chain of items: submitted ones, and those that a driver completes after the token has been released.
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

  // Sequentially consistent: a thread that releases the token calls this afterwards, and a thread that pushes tries to
  // take the token afterwards.
  bool empty() const noexcept { return top_.load() == nullptr; }

  // Returns a chain of the items in the order in which they were pushed.
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
