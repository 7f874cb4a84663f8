#include "c10d/times.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>

#include "c10d/cuda_side.hpp"

namespace axon::c10d_backend {

void Times::end() noexcept {
  ended_ = Clock::now();
  are_over_.store(true, std::memory_order_release);
  are_over_.notify_all();
}

void Times::begin_on(c10::Stream stream) {
  const auto timed = [&] { return c10::Event(stream.device_type(), c10::EventFlag::BACKEND_DEFAULT); };
  on_device_.emplace(OnDevice{.begun = timed(), .ended = timed()});
  on_device_->begun.record(stream);
}

void Times::end_on(c10::Stream stream) {
  on_device_->ended.record(stream);
}

void Times::make_device_current() const {
  if (!on_device_) return;
  const c10::Device device(on_device_->ended.device_type(), on_device_->ended.device_index());
  c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

bool Times::are_over() const {
  if (on_device_) return has_passed(on_device_->ended);
  return are_over_.load(std::memory_order_acquire);
}

Times::Clock::time_point Times::await() const {
  if (!on_device_) {
    are_over_.wait(false, std::memory_order_acquire);
    return ended_;
  }
  while (!are_over()) std::this_thread::sleep_for(kLookInterval);
  return Clock::now();
}

std::chrono::duration<float> Times::active() const {
  if (!on_device_) return ended_ - called_;
  return std::chrono::duration<float, std::milli>(on_device_->begun.elapsedTime(on_device_->ended));
}

}  // namespace axon::c10d_backend
