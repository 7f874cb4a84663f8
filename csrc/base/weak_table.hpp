// Objects of this process that are found by a key while they are shared. Any thread.
//
//   table.add(key, object);
//   std::shared_ptr<Object> found = table.find(key);   // null if there is none any more
//   Object::~Object() { table.forget(key); }
#pragma once

#include <iterator>
#include <map>
#include <memory>
#include <mutex>

namespace axon {

template <typename Key, typename Object>
class WeakTable {
 public:
  void add(const Key& key, const std::shared_ptr<Object>& object) {
    const std::lock_guard lock(mutex_);
    objects_[key] = object;
  }
  // The object of this key has ended. Another one may have taken its place.
  void forget(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(key);
    if (found != objects_.end() && found->second.expired()) objects_.erase(found);
  }

  std::shared_ptr<Object> find(const Key& key) const {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(key);
    return found == objects_.end() ? nullptr : found->second.lock();
  }
  // Returns the object of the greatest key that is not above this one.
  std::shared_ptr<Object> find_at_or_below(const Key& key) const {
    const std::lock_guard lock(mutex_);
    const auto above = objects_.upper_bound(key);
    return above == objects_.begin() ? nullptr : std::prev(above)->second.lock();
  }

 private:
  mutable std::mutex mutex_;  // guards the following member
  std::map<Key, std::weak_ptr<Object>> objects_;
};

}  // namespace axon
