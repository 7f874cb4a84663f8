#include "engine/condition.hpp"

#include <new>
#include <utility>

#include "engine/engine.hpp"

namespace axon::engine {

static ConditionWords* make_words() {
  void* const page = std::aligned_alloc(ConditionWords::kPageBytes, ConditionWords::kPageBytes);
  if (page == nullptr) throw std::bad_alloc();
  return new (page) ConditionWords{};
}

static uint32_t load(uint32_t& word) noexcept {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

Condition::Condition(Engine& engine) : engine_(engine), words_(make_words()) {}

void Condition::set() noexcept {
  std::atomic_ref(words_->num_set_by_host).fetch_add(1);
  announce();
}

void Condition::end(Status why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!reason_.ok()) return;
    reason_ = std::move(why);
  }
  std::atomic_ref(words_->has_ended).store(1);
  announce();
}

uint32_t Condition::num_set() const noexcept {
  return load(words_->num_set_by_host) + load(words_->num_set_by_device);
}

bool Condition::has_ended() const noexcept {
  return load(words_->has_ended) != 0;
}

Status Condition::status() const {
  const std::lock_guard lock(mutex_);
  if (!reason_.ok()) return reason_.clone();
  if (load(words_->has_timed_out) == 0) return Status();
  return {ErrorCode::kTimeout, "a kernel has waited for a condition for as long as it may"};
}

// The flag is cleared before the count is read, and set after the count has changed.
bool Condition::wait(sync::Clock::time_point deadline) noexcept {
  if (engine_.is_forked()) return false;
  for (;;) {
    is_to_look_.store(false);
    if (num_set() != num_waited_) break;
    if (has_ended() || !engine_.wait(is_to_look_, deadline)) return false;
  }
  ++num_waited_;
  return true;
}

void Condition::attach_device() noexcept {
  engine_.exclusively([this] {
    take();
    engine_.replays().watch(*this);
  });
}

void Condition::detach_device() noexcept {
  if (engine_.is_forked()) return;
  engine_.exclusively([this] { engine_.replays().unwatch(*this); });
}

void Condition::announce() noexcept {
  if (engine_.is_forked() || is_announced_.exchange(true)) return;
  announced_ = shared_from_this();
  engine_.submit_after_completion(*this);
  engine_.wake();
}

void Condition::begin() noexcept {
  num_told_.store(num_set());
  for (ConditionListener* each = listeners_.front(); each != nullptr;) {
    ConditionListener* const next = listeners_.next(*each);
    each->on_set();
    each = next;
  }
  engine_.post(*this);
}

// What was set after begin() was not announced.
void Condition::complete() noexcept {
  const std::shared_ptr<Condition> self = std::move(announced_);
  is_announced_.store(false);
  is_to_look_.store(true);
  if (num_set() != num_told_.load()) announce();
}

bool Condition::take() noexcept {
  const uint32_t num_set_by_device = load(words_->num_set_by_device);
  if (std::exchange(num_taken_, num_set_by_device) == num_set_by_device) return false;
  if (!is_announced_.exchange(true)) {
    announced_ = shared_from_this();
    begin();
  }
  return true;
}

void Condition::wait_for_next(Engine& engine) noexcept {
  unlink();
  engine.wait_for_flag(*this, *reinterpret_cast<std::atomic<uint32_t>*>(&words_->num_set_by_device), num_taken_ + 1);
}

}  // namespace axon::engine
