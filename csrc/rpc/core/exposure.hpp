// Memory that the sender of a message exposes. It stays unchanged there until this object is destroyed, on any thread.
#pragma once

#include <utility>

#include "engine/engine.hpp"

namespace axon::rpc {

class Exposure {
 public:
  Exposure() noexcept = default;
  // `rendezvous` belongs to the payload frame that represents the memory.
  Exposure(engine::Engine& engine, void* rendezvous) noexcept : engine_(&engine), rendezvous_(rendezvous) {}
  Exposure(Exposure&& other) noexcept
      : engine_(std::exchange(other.engine_, nullptr)), rendezvous_(std::exchange(other.rendezvous_, nullptr)) {}
  Exposure& operator=(Exposure&& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(rendezvous_, other.rendezvous_);
    return *this;
  }
  ~Exposure() {
    if (engine_ != nullptr) engine_->refuse_later(rendezvous_);
  }

 private:
  engine::Engine* engine_ = nullptr;
  void* rendezvous_ = nullptr;
};

}  // namespace axon::rpc
