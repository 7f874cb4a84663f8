#include "rpc/core/one_sided/notifications.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace axon::rpc {

bool Notifications::push(std::shared_ptr<Connection> from, std::span<const std::byte> tag) {
  std::function<void()> on_arrival;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.size() >= kMost || num_bytes_ + tag.size() > kMostNumBytes) return false;
    for (Waiter* each = waiters_.front(); each != nullptr; each = waiters_.next(*each)) {
      if (each->from == nullptr || each->from == from.get()) each->ends.store(true);
    }
    queue_.push_back(
        {.from = std::move(from), .tag = std::string(reinterpret_cast<const char*>(tag.data()), tag.size())});
    num_bytes_ += tag.size();
    on_arrival = std::exchange(on_arrival_, nullptr);
  }
  if (on_arrival) on_arrival();
  return true;
}

std::vector<Notification> Notifications::take(const Connection* from) {
  const std::lock_guard lock(mutex_);
  const auto begin = std::stable_partition(queue_.begin(), queue_.end(), [&](const Notification& notification) {
    return from != nullptr && notification.from.get() != from;
  });
  std::vector<Notification> taken(std::make_move_iterator(begin), std::make_move_iterator(queue_.end()));
  queue_.erase(begin, queue_.end());
  for (const Notification& notification : taken) num_bytes_ -= notification.tag.size();
  return taken;
}

std::vector<Notification> Notifications::take_first(size_t most) {
  const std::lock_guard lock(mutex_);
  std::vector<Notification> taken;
  while (!queue_.empty() && taken.size() < most) {
    num_bytes_ -= queue_.front().tag.size();
    taken.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return taken;
}

bool Notifications::has(const Connection* from) const noexcept {
  if (from == nullptr) return !queue_.empty();
  return std::ranges::any_of(queue_, [&](const Notification& each) { return each.from.get() == from; });
}

bool Notifications::wait(engine::Engine& engine, const Connection* from, Clock::time_point deadline) {
  Waiter waiter(from);
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_ || has(from)) return true;
    waiters_.push_back(waiter);
  }
  engine.wait(waiter.ends, deadline);
  const std::lock_guard lock(mutex_);
  waiter.unlink();
  return waiter.ends.load();
}

bool Notifications::watch(std::function<void()> on_arrival) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || !queue_.empty()) return false;
  on_arrival_ = std::move(on_arrival);
  return true;
}

void Notifications::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  for (Waiter* each = waiters_.front(); each != nullptr; each = waiters_.next(*each)) each->ends.store(true);
}

bool Notifications::is_over(const Connection* from) {
  const std::lock_guard lock(mutex_);
  return is_closed_ && !has(from);
}

}  // namespace axon::rpc
