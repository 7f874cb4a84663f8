#include "engine/condition.hpp"

#include <unistd.h>

#include <new>
#include <utility>

#include "engine/engine.hpp"

namespace axon::engine {

static ConditionCounts* make_counts() {
  const auto page_size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* const page = std::aligned_alloc(page_size, page_size);
  if (page == nullptr) throw std::bad_alloc();
  return new (page) ConditionCounts{};
}

static uint32_t load(uint32_t& count) noexcept {
  return std::atomic_ref(count).load();
}

Condition::Condition(Engine& engine) : engine_(engine), counts_(make_counts()) {}

void Condition::set() noexcept {
  std::atomic_ref(counts_->num_set_by_host).fetch_add(1);
  announce();
}

void Condition::end(Status why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!reason_.ok()) return;
    reason_ = std::move(why);
  }
  std::atomic_ref(counts_->has_ended).store(1);
  announce();
}

uint32_t Condition::num_set() const noexcept {
  return load(counts_->num_set_by_host) + load(counts_->num_set_by_device);
}

bool Condition::has_ended() const noexcept {
  return load(counts_->has_ended) != 0;
}

Status Condition::status() const {
  const std::lock_guard lock(mutex_);
  if (!reason_.ok()) return reason_.clone();
  if (load(counts_->has_timed_out) == 0) return Status();
  return {ErrorCode::kTimeout, "a kernel has waited for a condition for as long as it may"};
}

uint32_t Condition::num_set_beyond(uint32_t count) const noexcept {
  const auto difference = static_cast<int32_t>(num_set() - count);
  return difference > 0 ? static_cast<uint32_t>(difference) : 0;
}

// The flag is cleared before the count is read, and set after the count has changed. What was set before the end
// counts.
bool Condition::wait(sync::Clock::time_point deadline) noexcept {
  if (engine_.is_forked()) return false;
  for (bool is_over = false;;) {
    has_changed_.store(false);
    is_over |= has_ended();
    if (num_set_beyond(num_waited_) != 0) break;
    if (is_over) return false;
    is_over = !engine_.wait(has_changed_, deadline);
  }
  ++num_waited_;
  return true;
}

void Condition::attach_device() noexcept {
  if (engine_.is_forked()) return;
  engine_.exclusively([this] {
    take();
    engine_.replays().watch(*this);
  });
}

void Condition::detach_device() noexcept {
  if (engine_.is_forked()) return;
  engine_.exclusively([this] {
    take();
    engine_.replays().unwatch(*this);
  });
}

void Condition::announce() noexcept {
  if (engine_.is_forked() || is_announced_.exchange(true)) return;
  announced_ = shared_from_this();
  engine_.submit_after_completion(*this);
  engine_.wake();
}

uint64_t Condition::news() const noexcept {
  return uint64_t{num_set()} << 1 | (has_ended() ? 1 : 0);
}

void Condition::begin() noexcept {
  announced_news_.store(news());
  for (ConditionListener* each = listeners_.front(); each != nullptr;) {
    ConditionListener* const next = listeners_.next(*each);
    each->on_set();
    each = next;
  }
  engine_.post(*this);
}

// Changes that came after begin() have not been announced.
void Condition::complete() noexcept {
  const std::shared_ptr<Condition> self = std::move(announced_);
  is_announced_.store(false);
  has_changed_.store(true);
  if (news() != announced_news_.load()) announce();
}

void Condition::on_shut_down() noexcept {
  end({ErrorCode::kAborted, "torch_axon has been shut down in this process"});
}

bool Condition::take() noexcept {
  const uint32_t num_set_by_device = load(counts_->num_set_by_device);
  if (std::exchange(num_taken_, num_set_by_device) == num_set_by_device) return false;
  if (!is_announced_.exchange(true)) {
    announced_ = shared_from_this();
    begin();
  }
  return true;
}

// An atomic of four bytes is laid out like them.
Condition::Next Condition::next() const noexcept {
  return {.flag = *reinterpret_cast<std::atomic<uint32_t>*>(&counts_->num_set_by_device), .awaited = num_taken_ + 1};
}

}  // namespace axon::engine
