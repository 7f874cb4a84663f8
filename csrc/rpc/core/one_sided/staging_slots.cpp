#include "rpc/core/one_sided/staging_slots.hpp"

#include <string>

#include "rpc/core/one_sided/device_memory.hpp"

namespace axon::rpc {

void NewSlot::made(Result<Memory> memory) noexcept {
  memory_.emplace(std::move(memory));
  engine_.submit_to_drivers(*this);
}

// A slot that comes for a former engine is only kept.
void NewSlot::begin() noexcept {
  slots_.on_new_slot(engine_, std::move(*memory_));
  delete this;
}

StagingSlots::StagingSlots(std::vector<Buffer> slots, Owner memory)
    : free_(std::move(slots)), most_shared_(free_.size()) {
  memory_.push_back(std::move(memory));
}

std::optional<Buffer> StagingSlots::take(Waiter& waiter) noexcept {
  follow(waiter.engine_);
  Account& account = accounts_[waiter.peer_];
  const bool has_turn = !is_serving_ || served_ == &waiter;
  if (!has_turn || free_.empty() || !may_take(account)) {
    if (!waiter.linked()) account.waiters.push_back(waiter);
    enlist(account);
    grow();
    return std::nullopt;
  }
  account.unlink();
  if (account.num_held++ != 0) ++num_shared_;
  const Buffer slot = free_.back();
  free_.pop_back();
  return slot;
}

void StagingSlots::give_back(transport::PeerId peer, Buffer slot) noexcept {
  Account& account = accounts_[peer];
  if (--account.num_held == 0) {
    account.unlink();
  } else {
    --num_shared_;
  }
  free_.push_back({.data = slot.data, .num_bytes = kSegmentNumBytes});
  enlist(account);
  serve();
}

// A process has a new engine only after the former one, whose transfers have ended, or have been abandoned with their
// slots. What was to come for it does not come.
void StagingSlots::follow(engine::Engine& engine) noexcept {
  if (engine_ == &engine) return;
  engine_ = &engine;
  while (without_slot_.pop_front() != nullptr) {
  }
  while (with_slot_.pop_front() != nullptr) {
  }
  for (auto& [peer, account] : accounts_) {
    while (account.waiters.pop_front() != nullptr) {  // they leave later
    }
  }
  accounts_.clear();
  num_shared_ = num_to_come_ = 0;
}

bool StagingSlots::may_take(const Account& account) const noexcept {
  return account.num_held == 0 || (account.num_held < kMostPerPeer && num_shared_ < most_shared_);
}

void StagingSlots::enlist(Account& account) noexcept {
  if (account.linked() || account.waiters.empty() || account.num_held >= kMostPerPeer) return;
  (account.num_held == 0 ? without_slot_ : with_slot_).push_back(account);
}

StagingSlots::Account* StagingSlots::next_account() noexcept {
  if (Account* const account = without_slot_.pop_front()) return account;
  return num_shared_ < most_shared_ ? with_slot_.pop_front() : nullptr;
}

// Each peer in its turn. Nested calls, from waiters that end at once, leave it to the outer one.
void StagingSlots::serve() noexcept {
  if (std::exchange(is_serving_, true)) return;
  while (!free_.empty()) {
    Account* const account = next_account();
    if (account == nullptr) break;
    served_ = account->waiters.pop_front();
    if (served_ == nullptr) continue;  // all of them have left
    served_->on_slot();
    served_ = nullptr;
    enlist(*account);
  }
  is_serving_ = false;
  grow();
}

size_t StagingSlots::num_without_slot() noexcept {
  size_t count = 0;
  for (Account* account = without_slot_.front(); account != nullptr; account = without_slot_.next(*account)) {
    count += account->waiters.empty() ? 0 : 1;
  }
  return count;
}

// One slot for each peer that waits for its first. Whichever of them comes first gets it.
void StagingSlots::grow() noexcept {
  if (is_serving_ || !free_.empty() || without_slot_.empty()) return;
  for (size_t left = num_without_slot(); num_to_come_ < left; ++num_to_come_) {
    Waiter& waiter = *without_slot_.find([](const Account& each) { return !each.waiters.empty(); })->waiters.front();
    waiter.device_.allocate(*new NewSlot(waiter.engine_, *this));
  }
}

void StagingSlots::on_new_slot(const engine::Engine& engine, Result<NewSlot::Memory> made) noexcept {
  const bool is_expected = &engine == engine_ && num_to_come_ != 0;
  if (is_expected) --num_to_come_;
  if (!made.ok()) {
    if (!is_expected) return;
    return fail_first(
        Status(ErrorCode::kResourceExhausted, "cannot pin " + std::to_string(kSegmentNumBytes >> 20) +
                                                  " MiB of host memory for a segment: " + made.status().message()));
  }
  memory_.push_back(std::move(made.value().owner));
  free_.push_back({.data = made.value().data, .num_bytes = kSegmentNumBytes});
  if (is_expected) serve();
}

// The peer that is first would have got the slot.
void StagingSlots::fail_first(const Status& why) noexcept {
  if (num_without_slot() <= num_to_come_) return;
  Account& account = *without_slot_.find([](const Account& each) { return !each.waiters.empty(); });
  account.unlink();
  while (Waiter* const waiter = account.waiters.pop_front()) waiter->on_no_slot(why);
}

}  // namespace axon::rpc
