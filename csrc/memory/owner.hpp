// Keeps memory alive that a message borrows, until the message has left or arrived.
//
//   Owner owner(buffer, [](void* held) { static_cast<Buffer*>(held)->release(); });
//   Owner owner = Owner::of(std::make_shared<std::vector<float>>(…));        // from the heap
//
// Destroyed on any thread.
#pragma once

#include <memory>
#include <utility>

namespace axon {

class Owner {
 public:
  Owner() noexcept = default;
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

  // Shared with whoever else reads it.
  template <typename T>
  static Owner of(std::shared_ptr<T> object) {
    using Share = std::shared_ptr<T>;
    return {new Share(std::move(object)), [](void* held) { delete static_cast<Share*>(held); }};
  }

  // What it was made of; null where it owns nothing.
  void* get() const noexcept { return object_; }

 private:
  void* object_ = nullptr;
  void (*release_)(void*) = nullptr;
};

}  // namespace axon
