#include "c10d/rendezvous.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/log.hpp"
#include "c10d/errors.hpp"

namespace axon::c10d_backend {

using namespace std::chrono_literals;

// A longer round is repeated, and each next one may take longer. A process that replaces a killed one needs more time
// than this to start, so it finds an open round.
static constexpr std::chrono::milliseconds kShortRound = 3s;

// Longer timeouts would overflow the clock.
static constexpr std::chrono::hours kLongestTimeout{24 * 365};

// The first byte of an entry that ends a round.
static constexpr uint8_t kGroup = 'g';
static constexpr uint8_t kMove = 'm';

// The largest value that a TCPStore accepts.
static constexpr size_t kLargestValue = size_t{8} << 20;

Rendezvous::Rendezvous(c10d::Store& store, const Membership& membership, engine::Engine& engine)
    : store_(store),
      membership_(membership),
      engine_(engine),
      prefix_("axon/" + std::to_string(membership.size) + "/"),
      deadline_(std::chrono::steady_clock::now() +
                std::min<std::chrono::milliseconds>(membership.timeout, kLongestTimeout)) {}

std::vector<engine::PeerAddress> Rendezvous::meet() {
  const c10d::StoreTimeoutGuard timeout(store_, membership_.timeout);
  try {
    return membership_.rank == 0 ? lead() : follow();
  } catch (const std::exception&) {
    const std::string absent = time_left() > 10ms ? "" : absentees();
    if (round_ != 0 && membership_.rank != 0) forget(address_key(round_, membership_.rank));
    if (absent.empty()) throw;
    throw_failure(Status(ErrorCode::kTimeout, "[rank " + std::to_string(membership_.rank) + " of group '" +
                                                  membership_.group + "'] init_process_group: Timed out after " +
                                                  std::to_string(membership_.timeout.count()) +
                                                  " ms. Not joined by: " + absent));
  }
}

std::vector<engine::PeerAddress> Rendezvous::lead() {
  own_.reset(new engine::OwnAddress(engine_.make_address()));
  if (membership_.size == 1) return {own_->address()};
  open_next_round();
  end_unfinished_rounds();
  if (latest_group_ > 0) store_.set(next_key(latest_group_), std::to_string(round_));
  std::vector<Blob> addresses;
  for (std::chrono::milliseconds limit = kShortRound;; limit *= 2) {
    addresses = read_addresses();
    const bool was_short = std::chrono::steady_clock::now() - opened_at_ <= limit;
    if (was_short || time_left() < limit) break;
    const int64_t long_round = round_;
    open_next_round();
    move_all_from(long_round);
  }
  const Blob end = encode_group(addresses);
  store_.set(end_key(round_), end);
  if (latest_group_ > 0) forget(next_key(latest_group_));
  for (int64_t round = std::max<int64_t>(latest_group_, 1); round < round_; ++round) forget(end_key(round));
  return decode(end).addresses;
}

std::vector<engine::PeerAddress> Rendezvous::follow() {
  round_ = get_number(prefix_ + "round");
  while (true) {
    own_.reset(new engine::OwnAddress(engine_.make_address()));
    store_.set(address_key(round_, membership_.rank), own_->address().encode());
    End end = decode(get(end_key(round_)));
    if (end.next_round != 0) {
      round_ = end.next_round;
    } else if (is_member(end)) {
      sweep(end.latest_group + 1);
      return std::move(end.addresses);
    } else {  // it had ended before this rank arrived
      forget(address_key(round_, membership_.rank));
      const int64_t ended = std::exchange(round_, 0);  // in no round until rank 0 opens another one
      round_ = get_number(next_key(ended));
    }
  }
}

void Rendezvous::open_next_round() {
  round_ = store_.add(prefix_ + "round", 1);
  opened_at_ = std::chrono::steady_clock::now();
}

// Ranks may wait for the end of rounds whose rank 0 has died. If a round has ended, all rounds before it have ended,
// too.
void Rendezvous::end_unfinished_rounds() {
  int64_t ended = round_ - 1;
  while (ended > 0 && !store_.check({end_key(ended)})) --ended;
  latest_group_ = ended;
  if (ended == round_ - 1) return;
  if (ended > 0) {
    const End end = decode(get(end_key(ended)));
    if (end.next_round != 0) latest_group_ = end.latest_group;
  }
  move_all_from(ended + 1);
}

void Rendezvous::move_all_from(int64_t first_round) {
  for (int64_t round = first_round; round < round_; ++round) store_.set(end_key(round), encode_move());
}

std::vector<Rendezvous::Blob> Rendezvous::read_addresses() {
  std::vector<std::string> keys;
  for (int rank = 1; rank < membership_.size; ++rank) keys.push_back(address_key(round_, rank));
  std::vector<Blob> addresses;
  if (store_.hasExtendedApi()) {
    store_.setTimeout(time_left());
    addresses = store_.multiGet(keys);
  } else {
    for (const std::string& each : keys) get(each);  // until all are present; ranks may replace some meanwhile
    for (const std::string& each : keys) addresses.push_back(get(each));
  }
  addresses.insert(addresses.begin(), own_->address().encode());
  return addresses;
}

bool Rendezvous::is_member(const End& end) const {
  const auto rank = static_cast<size_t>(membership_.rank);
  return end.addresses.size() == static_cast<size_t>(membership_.size) &&
         end.addresses[rank].key == own_->address().key;
}

// Numbers of eight bytes in this machine's byte order, as in the addresses.
static void append(std::vector<uint8_t>& blob, uint64_t number) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&number);
  blob.insert(blob.end(), bytes, bytes + sizeof number);
}

static uint64_t take_number(std::span<const uint8_t>& blob) {
  uint64_t number = 0;
  if (blob.size() < sizeof number) throw_failure(Status(ErrorCode::kTransport, "a truncated entry in the store"));
  std::memcpy(&number, blob.data(), sizeof number);
  blob = blob.subspan(sizeof number);
  return number;
}

Rendezvous::Blob Rendezvous::encode_move() const {
  Blob blob{kMove};
  append(blob, static_cast<uint64_t>(latest_group_));
  append(blob, static_cast<uint64_t>(round_));
  return blob;
}

Rendezvous::Blob Rendezvous::encode_group(const std::vector<Blob>& addresses) const {
  Blob blob{kGroup};
  append(blob, static_cast<uint64_t>(latest_group_));
  for (const Blob& peer_address : addresses) {
    append(blob, peer_address.size());
    blob.insert(blob.end(), peer_address.begin(), peer_address.end());
  }
  if (blob.size() >= kLargestValue) {
    throw_failure(Status(ErrorCode::kResourceExhausted, "the addresses of " + std::to_string(addresses.size()) +
                                                            " ranks take " + std::to_string(blob.size()) +
                                                            " bytes; a value of the store holds at most " +
                                                            std::to_string(kLargestValue) + ": make smaller groups"));
  }
  return blob;
}

engine::PeerAddress Rendezvous::decode_address(size_t rank, const Blob& blob) {
  Result<engine::PeerAddress> peer_address = engine::PeerAddress::decode(blob);
  if (peer_address.ok()) return std::move(peer_address).value();
  throw_failure(Status(ErrorCode::kTransport, "the address of rank " + std::to_string(rank) +
                                                  " cannot be read: " + peer_address.status().message()));
}

Rendezvous::End Rendezvous::decode(const Blob& blob) {
  std::span<const uint8_t> rest(blob);
  if (rest.empty()) throw_failure(Status(ErrorCode::kTransport, "an empty entry in the store"));
  const bool is_move = rest.front() == kMove;
  rest = rest.subspan(1);
  End end{.latest_group = static_cast<int64_t>(take_number(rest)), .next_round = 0, .addresses = {}};
  if (is_move) {
    end.next_round = static_cast<int64_t>(take_number(rest));
    return end;
  }
  while (!rest.empty()) {
    const size_t num_bytes = std::min<size_t>(take_number(rest), rest.size());
    end.addresses.push_back(decode_address(end.addresses.size(), Blob(rest.begin(), rest.begin() + num_bytes)));
    rest = rest.subspan(num_bytes);
  }
  return end;
}

std::string Rendezvous::key(int64_t round, const std::string& name) const {
  return prefix_ + std::to_string(round) + "/" + name;
}

Rendezvous::Blob Rendezvous::get(const std::string& key) {
  store_.setTimeout(time_left());
  return store_.get(key);
}

int64_t Rendezvous::get_number(const std::string& key) {
  const Blob number = get(key);
  return std::stoll(std::string(number.begin(), number.end()));
}

void Rendezvous::sweep(int64_t first_round) noexcept {
  for (int64_t round = first_round; round <= round_; ++round) forget(address_key(round, membership_.rank));
}

void Rendezvous::forget(const std::string& key) noexcept {
  try {
    store_.deleteKey(key);
  } catch (const std::exception&) {
    log::info("the store cannot delete '" + key + "'; the entry remains");
  }
}

// Called only after a failure, with one store call per rank. Empty if the store does not answer either.
std::string Rendezvous::absentees() noexcept {
  if (round_ == 0) return "rank 0";
  try {
    std::string names;
    for (int rank = 1; rank < membership_.size; ++rank) {
      if (!store_.check({address_key(round_, rank)}))
        names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
    }
    return names.empty() && membership_.rank != 0 ? "rank 0" : names;
  } catch (const std::exception&) {
    return {};
  }
}

// Returns at least a millisecond: zero would mean no limit.
std::chrono::milliseconds Rendezvous::time_left() const {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - std::chrono::steady_clock::now());
  return std::max<std::chrono::milliseconds>(left, 1ms);
}

}  // namespace axon::c10d_backend
