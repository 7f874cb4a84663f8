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

// A queue in the order of pushes. Progress owner only.
class OrderedQueue {
 public:
  bool empty() const noexcept { return first_ == nullptr; }

  void push(QueueNode& item) noexcept {
    item.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &item;
    last_ = &item;
  }

  // Returns null if the queue is empty.
  QueueNode* pop() noexcept { return first_ == nullptr ? nullptr : std::exchange(first_, first_->next); }

  // Returns a chain of all items.
  QueueNode* take_all() noexcept { return std::exchange(first_, nullptr); }

 private:
  QueueNode* first_ = nullptr;
  QueueNode* last_ = nullptr;  // undefined while the queue is empty
};

}  // namespace axon::engine
