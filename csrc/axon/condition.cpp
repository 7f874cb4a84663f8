#include "axon/condition.hpp"

#include "axon/deadline.hpp"
#include "engine/condition.hpp"
#include "engine/engine.hpp"
#include "rpc/core/one_sided/triggered_transfer.hpp"

namespace axon::library {

void Condition::set() noexcept {
  state_->set();
}

bool Condition::wait(std::chrono::milliseconds timeout) noexcept {
  return state_->wait(deadline_in(timeout));
}

uint32_t Condition::num_set() const noexcept {
  return state_->num_set();
}

Status Condition::status() const {
  return state_->status();
}

ConditionCounts* Condition::counts() const noexcept {
  return &state_->counts();
}

void Condition::attach_device() const noexcept {
  state_->attach_device();
}

void Condition::detach_device() const noexcept {
  state_->detach_device();
}

void* Condition::engine() const noexcept {
  return &state_->engine();
}

// Engines are never freed.
void Condition::expect(void* engine) noexcept {
  auto& expecting = *static_cast<engine::Engine*>(engine);
  if (!expecting.is_forked()) expecting.replays().wake();
}

TriggeredTransfer& TriggeredTransfer::operator=(TriggeredTransfer&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

TriggeredTransfer::~TriggeredTransfer() {
  close();
}

uint64_t TriggeredTransfer::num_finished() const noexcept {
  return state_ == nullptr ? 0 : state_->num_finished();
}

Status TriggeredTransfer::status() const {
  return state_ == nullptr ? Status() : state_->status();
}

void TriggeredTransfer::close() noexcept {
  if (state_ != nullptr) state_->close();
}

bool TriggeredTransfer::released() const noexcept {
  return state_ == nullptr || state_->released();
}

}  // namespace axon::library
