#include "engine/replays.hpp"

#include <utility>

#include "engine/engine.hpp"

namespace axon::engine {

// A graph may compute for so long between two calls that it holds.
static constexpr std::chrono::seconds kLongestQuiet{10};

void Replays::watch(const TriggerRing& ring) {
  watch(readers_.emplace_back(ring));
}

void Replays::watch(Source& source) noexcept {
  source.replays_ = this;
  sources_.push_back(&source);
  if (polls_) wait_for_next(source);
}

void Replays::unwatch(Source& source) noexcept {
  source.unlink();
  std::erase(sources_, &source);
}

void Replays::add(std::shared_ptr<Triggered> call) noexcept {
  if (has_ended_) return call->fail();
  const uint32_t id = call->trigger_id();
  calls_.emplace(id, std::move(call));
}

void Replays::read() noexcept {
  for (Source* source : sources_) read(*source);
}

void Replays::read(Source& source) noexcept {
  if (has_ended_) return;
  const bool has_taken = source.take();
  if (has_taken) poll_from_now_on();
  if (polls_ && (has_taken || !source.linked())) wait_for_next(source);
}

void Replays::wait_for_next(Source& source) noexcept {
  source.unlink();  // from a former flag
  const auto [flag, awaited] = source.next();
  engine_.wait_for_flag(source, flag, awaited);
}

void Replays::wake() noexcept {
  if (!engine_.has_ended() && !is_submitted_.exchange(true)) engine_.submit_to_drivers(*this);
}

void Replays::begin() noexcept {
  is_submitted_.store(false);
  poll_from_now_on();
}

void Replays::poll_always() noexcept {
  polls_always_ = true;
  poll_from_now_on();
}

void Replays::poll_from_now_on() noexcept {
  busy_at_ = sync::Clock::now();
  if (has_ended_ || std::exchange(polls_, true)) return;
  engine_.begin_device_operation();
  for (Source* source : sources_) wait_for_next(*source);
}

void Replays::tick(sync::Clock::time_point now) noexcept {
  if (!polls_) {
    read();
  } else if (!polls_always_ && now - busy_at_ > kLongestQuiet) {
    polls_ = false;
    engine_.end_device_operation();
    for (Source* source : sources_) source->unlink();
  }
}

// Launches that are already in a ring start no call any more.
void Replays::shut_down() noexcept {
  has_ended_ = true;
  for (Source* source : sources_) source->on_shut_down();
  for (const auto& [id, call] : std::exchange(calls_, {})) call->fail();
}

void Replays::trigger(uint32_t id) noexcept {
  const auto call = calls_.find(id);
  if (call != calls_.end()) call->second->trigger();
}

bool Replays::Reader::take() noexcept {
  bool has_taken = false;
  for (; const uint32_t id = ring_.take(); has_taken = true) replays_->trigger(id);
  return has_taken;
}

}  // namespace axon::engine
