#include "messaging/early_messages.hpp"

#include <string>
#include <utility>

#include "base/log.hpp"

namespace axon::messaging {

static uint32_t upper_half_of(uint64_t key) noexcept {
  return static_cast<uint32_t>(key >> 32);
}

void EarlyMessages::expect(uint64_t key) {
  expected_[key];
  if (const auto found = series_.find(upper_half_of(key)); found != series_.end()) std::erase(found->second, key);
}

bool EarlyMessages::retire(uint64_t key) noexcept {
  const auto found = expected_.find(key);
  if (found == expected_.end()) return false;
  discard(found->second);
  expected_.erase(found);
  return true;
}

EarlyMessages::Early* EarlyMessages::find(uint64_t key) noexcept {
  if (const auto found = expected_.find(key); found != expected_.end()) return &found->second;
  const auto series = series_.find(upper_half_of(key));
  if (series == series_.end()) return nullptr;
  if (series->second.size() == kMostOfSeries) {
    retire(series->second.front());
    series->second.pop_front();
  }
  series->second.push_back(key);
  return &expected_[key];
}

// A progress query would be answered too late, so it is dropped.
bool EarlyMessages::hold(const transport::MessageHeader& header, const transport::Payload& payload) noexcept {
  Early* const early = find(header.key);
  if (early == nullptr) return false;
  const bool is_question =
      header.kind == transport::MessageKind::kProgressQuery || header.kind == transport::MessageKind::kProgressReply;
  if (!is_question && num_bytes_ < kMostBytes) {
    Unexpected& message = hold_copy(pool_, header, payload);
    early->messages.push_back(message);
    num_bytes_ += message.num_bytes_held();
    return true;
  }
  drop(payload);
  if (is_question || std::exchange(early->overflowed, true)) return true;
  log::warn("more than " + std::to_string(kMostBytes >> 20) +
            " MiB of messages have arrived for groups that this process has not formed yet. Further ones are dropped, "
            "and their group will fail here when it is formed");
  return true;
}

void EarlyMessages::let_go(Unexpected& message) noexcept {
  num_bytes_ -= message.num_bytes_held();
  release_copy(pool_, message);
}

void EarlyMessages::discard(Early& early) noexcept {
  while (Unexpected* message = early.messages.front()) {
    drop(message->payload);
    let_go(*message);
  }
}

void EarlyMessages::discard_all() noexcept {
  for (auto& [key, early] : expected_) discard(early);
}

void EarlyMessages::drop(const transport::Payload& payload) noexcept {
  ++num_dropped_;
  if (payload.rendezvous == nullptr) return;
  transport_.refuse(payload.rendezvous, {ErrorCode::kAborted, "the receiver has left the group, or never formed it"});
}

}  // namespace axon::messaging
