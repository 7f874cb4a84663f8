#include "c10d/bootstrap.hpp"

#include <c10/util/Exception.h>

#include <vector>

#include "base/log.hpp"
#include "base/trace.hpp"
#include "c10d/errors.hpp"
#include "comm/engine.hpp"

namespace axon {

static constexpr const char* kJoined = "axon/joined";

namespace {

// One incarnation of the group's name in the store.
class Meeting {
 public:
  Meeting(c10d::Store& store, const Membership& membership)
      : store_(store),
        membership_(membership),
        timeout_(store, membership.timeout),
        incarnation_((store.add(kJoined, 1) - 1) / membership.size) {}

  std::vector<PeerCard> exchange(const PeerCard& own) {
    try {
      store_.set(key(incarnation_, membership_.rank), own.encode());
      std::vector<PeerCard> cards = decode(read_all());
      forget(incarnation_ - 1);
      return cards;
    } catch (const std::exception&) {
      const std::string absent = absentees();
      withdraw();
      if (absent.empty()) throw;
      throw_failure(Status(ErrorCode::kTimeout, "[rank " + std::to_string(membership_.rank) + " of group '" +
                                                    membership_.group + "'] init_process_group: Timed out after " +
                                                    std::to_string(membership_.timeout.count()) +
                                                    " ms. Not joined by: " + absent));
    }
  }

 private:
  static std::string key(int64_t incarnation, int rank) {
    return "axon/" + std::to_string(incarnation) + "/" + std::to_string(rank);
  }

  std::vector<std::vector<uint8_t>> read_all() {
    std::vector<std::string> keys;
    for (int rank = 0; rank < membership_.size; ++rank) keys.push_back(key(incarnation_, rank));
    if (store_.hasExtendedApi()) return store_.multiGet(keys);
    std::vector<std::vector<uint8_t>> blobs;
    for (const std::string& each : keys) blobs.push_back(store_.get(each));
    return blobs;
  }

  static std::vector<PeerCard> decode(const std::vector<std::vector<uint8_t>>& blobs) {
    std::vector<PeerCard> cards;
    for (size_t rank = 0; rank < blobs.size(); ++rank) {
      Result<PeerCard> card = PeerCard::decode(blobs[rank]);
      if (!card.ok()) {
        throw_failure(Status(ErrorCode::kTransport, "the card of rank " + std::to_string(rank) +
                                                        " cannot be read: " + card.status().message()));
      }
      cards.push_back(std::move(card).value());
    }
    return cards;
  }

  // After a failure only: one call a rank. Empty when the store does not answer either.
  std::string absentees() noexcept {
    try {
      std::string names;
      for (int rank = 0; rank < membership_.size; ++rank) {
        if (!store_.check({key(incarnation_, rank)}))
          names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
      }
      return names;
    } catch (const std::exception&) {
      return {};
    }
  }

  // So that another try meets again.
  void withdraw() noexcept {
    try {
      store_.add(kJoined, -1);
      store_.deleteKey(key(incarnation_, membership_.rank));
    } catch (const std::exception&) {
      log::info("the store is gone: what was left in it stays");
    }
  }

  void forget(int64_t incarnation) noexcept {
    if (incarnation < 0) return;
    try {
      store_.deleteKey(key(incarnation, membership_.rank));
    } catch (const std::exception&) {
      log::info("the store cannot delete keys: those of groups that are gone stay");
    }
  }

  c10d::Store& store_;
  const Membership& membership_;
  const c10d::StoreTimeoutGuard timeout_;
  const int64_t incarnation_;
};

}  // namespace

std::shared_ptr<Communicator> join(c10d::Store& store, const Membership& membership) {
  log::set_rank(membership.global_rank);
  if (Status opened = trace::open(membership.global_rank); !opened.ok()) throw_failure(opened);
  const EngineHold hold = Engine::hold_instance();
  Engine& engine = hold.engine();
  const Status room = engine.check_room_for_group(static_cast<size_t>(membership.size));
  if (!room.ok()) {
    const std::string whose = "[rank " + std::to_string(membership.rank) + " of group '" + membership.group + "'] ";
    throw_failure(Status(room.code(), whose + room.message()));
  }
  const OwnCard own = engine.make_card();
  std::vector<PeerCard> cards = Meeting(store, membership).exchange(own.card());
  Result<std::unique_ptr<Communicator>> formed =
      engine.form({.name = membership.group, .rank = membership.rank, .cards = std::move(cards)});
  if (!formed.ok()) throw_failure(formed.status());
  return std::move(formed).value();
}

}  // namespace axon
