#include "engine/replays.hpp"

#include <utility>

#include "engine/engine.hpp"

namespace axon::engine {

// A graph may compute for so long between two calls that it holds.
static constexpr std::chrono::seconds kLongestQuiet{10};

void Replays::watch(const TriggerRing& ring) {
  Reader& reader = readers_.emplace_back(*this, ring);
  if (polls_) reader.wait();
}

void Replays::add(std::shared_ptr<Triggered> call) noexcept {
  if (has_ended_) return call->fail();
  const uint32_t id = call->trigger_id();
  calls_.emplace(id, std::move(call));
}

void Replays::read() noexcept {
  for (Reader& reader : readers_) reader.read();
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
  for (Reader& reader : readers_) reader.wait();
}

void Replays::tick(sync::Clock::time_point now) noexcept {
  if (!polls_) {
    for (Reader& reader : readers_) reader.read();
  } else if (!polls_always_ && now - busy_at_ > kLongestQuiet) {
    polls_ = false;
    engine_.end_device_operation();
    for (Reader& reader : readers_) reader.unlink();
  }
}

// Launches that are already in a ring start no call any more.
void Replays::shut_down() noexcept {
  has_ended_ = true;
  for (const auto& [id, call] : std::exchange(calls_, {})) call->fail();
}

void Replays::trigger(uint32_t id) noexcept {
  const auto call = calls_.find(id);
  if (call != calls_.end()) call->second->trigger();
}

void Replays::Reader::read() noexcept {
  bool has_taken = false;
  for (; const uint32_t id = ring_.take(); has_taken = true) replays_.trigger(id);
  if (!has_taken) return;
  replays_.poll_from_now_on();
  if (linked()) wait();  // for another entry than before
}

void Replays::Reader::wait() noexcept {
  unlink();
  replays_.engine_.wait_for_flag(*this, ring_.next());
}

void Replays::Reader::on_flag_set() noexcept {
  if (replays_.has_ended_) return;
  read();
  wait();
}

}  // namespace axon::engine
