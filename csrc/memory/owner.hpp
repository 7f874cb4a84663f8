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

  // Shares the object with its other readers.
  template <typename T>
  static Owner of(std::shared_ptr<T> object) {
    using Share = std::shared_ptr<T>;
    return {new Share(std::move(object)), [](void* held) { delete static_cast<Share*>(held); }};
  }

  // Returns the object that it owns; null if it owns none.
  void* get() const noexcept { return object_; }

 private:
  void* object_ = nullptr;
  void (*release_)(void*) = nullptr;
};

}  // namespace axon
