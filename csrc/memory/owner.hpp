// Keeps alive the memory that a message uses, until the message has been sent or has arrived.
//
//   Owner owner(buffer, [](void* held) { static_cast<Buffer*>(held)->release(); });
//   Owner shared = Owner::of(std::make_shared<std::vector<float>>(num_elements));   // from the heap
//
// May be destroyed on any thread.
#pragma once

#include <memory>
#include <utility>

namespace axon {

/// Owns an object through a function that releases it. It can be moved, not copied.
class Owner {
 public:
  /// Owns nothing.
  Owner() noexcept = default;
  /// Owns an object.
  /// @param object the object; null owns nothing
  /// @param release called once with the object when this is destroyed, on any thread; it must not throw
  Owner(void* object, void (*release)(void*)) noexcept : object_(object), release_(release) {}
  Owner(Owner&& other) noexcept : object_(std::exchange(other.object_, nullptr)), release_(other.release_) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(object_, other.object_);
    std::swap(release_, other.release_);
    return *this;
  }
  ~Owner() {
    if (object_ != nullptr) release_(object_);
  }

  /// @param object an object, which is shared with its other readers
  /// @return an owner that holds a share of it
  template <typename T>
  static Owner of(std::shared_ptr<T> object) {
    using Share = std::shared_ptr<T>;
    return {new Share(std::move(object)), [](void* held) { delete static_cast<Share*>(held); }};
  }

  /// @return the object that it owns; null if it owns none
  void* get() const noexcept { return object_; }

 private:
  void* object_ = nullptr;
  void (*release_)(void*) = nullptr;
};

}  // namespace axon
