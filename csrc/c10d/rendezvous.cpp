#include "c10d/rendezvous.hpp"

#include <algorithm>
#include <utility>

#include "c10d/errors.hpp"

namespace axon::c10d_backend {

using namespace std::chrono_literals;

// A longer round is repeated, and each next one may take longer. A process that replaces a killed one needs more time
// than this to start, so it finds an open round.
static constexpr std::chrono::milliseconds kShortRound = 3s;

// A failure names this many absent ranks.
static constexpr size_t kMostNamed = 32;

Rendezvous::Rendezvous(c10d::Store& store, const Membership& membership, engine::Engine& engine)
    : store_(store), membership_(membership), engine_(engine), entries_(store, membership.size, membership.timeout) {}

std::vector<engine::PeerAddress> Rendezvous::meet() {
  const c10d::StoreTimeoutGuard timeout(store_, membership_.timeout);
  try {
    return membership_.rank == 0 ? lead() : follow();
  } catch (const std::exception&) {
    if (has_told_failure_) throw;
    const bool is_timeout = entries_.time_left() <= 10ms;
    if (is_timeout && !trouble_.empty()) throw_timeout(trouble_);
    const std::string absent = is_timeout ? absentees() : "";
    if (round_ != 0 && membership_.rank != 0 && trouble_.empty())
      entries_.forget(entries_.address_key(round_, membership_.rank));
    if (absent.empty()) throw;
    throw_timeout("Not joined by: " + absent);
  }
}

void Rendezvous::throw_timeout(const std::string& why) {
  throw_failure(Status(ErrorCode::kTimeout, "[rank " + std::to_string(membership_.rank) + " of group '" +
                                                membership_.group + "'] init_process_group: Timed out after " +
                                                std::to_string(membership_.timeout.count()) + " ms. " + why));
}

std::vector<engine::PeerAddress> Rendezvous::lead() {
  make_addresses();
  if (membership_.size == 1) return {own_->address()};
  open_next_round();
  end_unfinished_rounds();
  if (latest_group_ > 0) entries_.set(entries_.next_key(latest_group_), std::to_string(round_));
  std::vector<engine::PeerAddress> addresses;
  for (std::chrono::milliseconds limit = kShortRound;; limit *= 2) {
    if (is_over_tree()) {
      entries_.await_all(entries_.address_keys(round_, 1, membership_.size - 1));
    } else {
      addresses = read_addresses();
    }
    const bool was_short = std::chrono::steady_clock::now() - opened_at_ <= limit;
    if (was_short || entries_.time_left() < limit) break;
    const int64_t long_round = round_;
    open_next_round();
    move_all_from(long_round);
  }
  if (is_over_tree()) {
    addresses = lead_exchange();
  } else {
    entries_.set(entries_.end_key(round_), RoundEnd{.latest_group = latest_group_, .addresses = addresses}.encode());
  }
  sweep_as_root();
  return addresses;
}

std::vector<engine::PeerAddress> Rendezvous::follow() {
  round_ = entries_.get_number(entries_.round_key());
  while (true) {
    make_addresses();
    entries_.set(entries_.address_key(round_, membership_.rank), (tree_ ? tree_->address() : own_->address()).encode());
    RoundEnd end = RoundEnd::decode(entries_.get(entries_.end_key(round_)));
    if (end.kind == RoundEnd::Kind::kExchange) end = follow_exchange(end);
    if (end.kind == RoundEnd::Kind::kMove) {
      round_ = end.next_round;
    } else if (is_member(end)) {
      sweep(end.latest_group);
      return std::move(end.addresses);
    } else {  // it had ended before this rank arrived
      entries_.forget(entries_.address_key(round_, membership_.rank));
      const int64_t ended = std::exchange(round_, 0);  // in no round until rank 0 opens another one
      round_ = entries_.get_number(entries_.next_key(ended));
    }
  }
}

void Rendezvous::make_addresses() {
  own_.reset(new engine::OwnAddress(engine_.make_address()));
  trouble_.clear();
  if (!is_over_tree()) return;
  tree_.emplace(engine_,
                engine::AddressTree::Place{membership_.group, membership_.rank, membership_.size, entries_.deadline()},
                [this] { return have_others_given_up(); });
}

void Rendezvous::open_next_round() {
  round_ = entries_.count_up(entries_.round_key());
  opened_at_ = std::chrono::steady_clock::now();
}

// Ranks may wait for the end of rounds whose rank 0 has died. If a round has ended, all rounds before it have ended,
// too. A rank 0 that dies during an exchange over the tree leaves the round with the entry that began it.
void Rendezvous::end_unfinished_rounds() {
  int64_t ended = round_ - 1;
  while (ended > 0 && !entries_.has(entries_.end_key(ended))) --ended;
  latest_group_ = ended;
  if (ended == round_ - 1 && !is_over_tree()) return;
  if (ended > 0) {
    const RoundEnd end = RoundEnd::decode(entries_.get(entries_.end_key(ended)));
    const bool is_exchange = end.kind == RoundEnd::Kind::kExchange;
    if (is_exchange || end.kind == RoundEnd::Kind::kMove) latest_group_ = end.latest_group;
    if (is_exchange) entries_.set(entries_.outcome_key(ended--), move_to_this_round().encode());
  }
  move_all_from(ended + 1);
}

void Rendezvous::move_all_from(int64_t first_round) {
  for (int64_t round = first_round; round < round_; ++round)
    entries_.set(entries_.end_key(round), move_to_this_round().encode());
}

RoundEnd Rendezvous::move_to_this_round() const {
  return {.kind = RoundEnd::Kind::kMove, .latest_group = latest_group_, .next_round = round_};
}

std::vector<engine::PeerAddress> Rendezvous::read_addresses() {
  std::vector<engine::PeerAddress> addresses{own_->address()};
  for (const Blob& encoded : entries_.get_all(entries_.address_keys(round_, 1, membership_.size - 1)))
    addresses.push_back(decode_address(static_cast<int>(addresses.size()), encoded));
  return addresses;
}

bool Rendezvous::is_member(const RoundEnd& end) const {
  const auto rank = static_cast<size_t>(membership_.rank);
  return end.addresses.size() == static_cast<size_t>(membership_.size) &&
         end.addresses[rank].key == own_->address().key;
}

// Neighbours in the tree may still read this rank's address of this round.
void Rendezvous::sweep(int64_t latest_group) noexcept {
  const int64_t first = is_over_tree() ? std::max<int64_t>(latest_group, 1) : latest_group + 1;
  const int64_t last = is_over_tree() ? round_ - 1 : round_;
  for (int64_t round = first; round <= last; ++round) entries_.forget(entries_.address_key(round, membership_.rank));
}

void Rendezvous::sweep_as_root() noexcept {
  if (latest_group_ > 0) entries_.forget(entries_.next_key(latest_group_));
  for (int64_t round = std::max<int64_t>(latest_group_, 1); round < round_; ++round) {
    entries_.forget(entries_.end_key(round));
    if (!is_over_tree()) continue;
    entries_.forget(entries_.outcome_key(round));
    entries_.forget(entries_.trouble_key(round));
  }
}

// Called only after a failure. Empty if the store does not answer either. One question is about many ranks, as all of
// those that are present ask.
std::string Rendezvous::absentees() noexcept {
  if (round_ == 0) return "rank 0";
  try {
    struct Range {
      int first, last;
    };
    std::vector<Range> unknown{{1, membership_.size - 1}};
    std::string names;
    for (size_t num_named = 0; !unknown.empty();) {
      const Range range = unknown.back();
      unknown.pop_back();
      if (entries_.has_all(entries_.address_keys(round_, range.first, range.last))) continue;
      if (range.first < range.last) {
        const int middle = (range.first + range.last) / 2;
        unknown.push_back({middle + 1, range.last});
        unknown.push_back({range.first, middle});
      } else if (num_named++ == kMostNamed) {
        return names + " and others";
      } else {
        names += (names.empty() ? "rank " : ", rank ") + std::to_string(range.first);
      }
    }
    return names.empty() && membership_.rank != 0 ? "rank 0" : names;
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace axon::c10d_backend
