// Keeps memory alive that a message is sent from, or received into.
#pragma once

#include <utility>

namespace axon {

// Until it is destroyed, on any thread.
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

  // What it was made of; null where it owns nothing.
  void* get() const noexcept { return object_; }

 private:
  void* object_ = nullptr;
  void (*release_)(void*) = nullptr;
};

}  // namespace axon
