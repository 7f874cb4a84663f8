// How the ranks of a large group exchange their addresses over a tree, once all of them are in the store.
//
//   gather      addresses, up to rank 0      a failure of any rank: nothing has been formed
//   broadcast   the table, down to all       the same
//   gather      empty: all below have it     the same
//   announce    by rank 0, in the store      from here on the group is formed, whatever fails
//   broadcast   empty: all have it           a failure: the rank reads in the store what rank 0 has announced
//
// A rank at which the tree fails writes why into the store, and waits there for what rank 0 announces. All ranks that
// wait look there every second, so none of them needs to be reached over the tree. If rank 0 has died, the process
// that replaces it announces the next round.
#include <c10/util/Exception.h>

#include <cstring>
#include <span>
#include <utility>

#include "base/log.hpp"
#include "c10d/errors.hpp"
#include "c10d/rendezvous.hpp"

namespace axon::c10d_backend {

namespace {

// Precedes an address in the messages of the tree, whose order there is that of the tree.
struct TableEntry {
  uint32_t rank = 0;
  uint32_t num_bytes = 0;
};

}  // namespace

static Blob encode_entry(int rank, const engine::PeerAddress& peer_address) {
  const Blob encoded = peer_address.encode();
  const TableEntry entry{.rank = static_cast<uint32_t>(rank), .num_bytes = static_cast<uint32_t>(encoded.size())};
  Blob blob(sizeof entry + encoded.size());
  std::memcpy(blob.data(), &entry, sizeof entry);
  std::memcpy(blob.data() + sizeof entry, encoded.data(), encoded.size());
  return blob;
}

static Result<std::vector<engine::PeerAddress>> decode_table(std::span<const uint8_t> rest, int size) {
  const auto refuse = [](const std::string& why) { return Status(ErrorCode::kTransport, "it was sent " + why); };
  std::vector<std::optional<engine::PeerAddress>> found(static_cast<size_t>(size));
  while (!rest.empty()) {
    TableEntry entry;
    if (rest.size() < sizeof entry) return refuse("a truncated table of addresses");
    std::memcpy(&entry, rest.data(), sizeof entry);
    rest = rest.subspan(sizeof entry);
    if (rest.size() < entry.num_bytes || entry.rank >= found.size()) return refuse("a damaged table of addresses");
    const std::string whose = "the address of rank " + std::to_string(entry.rank);
    if (found[entry.rank]) return refuse(whose + " twice");
    Result<engine::PeerAddress> decoded = engine::PeerAddress::decode(rest.first(entry.num_bytes));
    if (!decoded.ok()) return refuse(whose + ", which cannot be read: " + decoded.status().message());
    found[entry.rank] = std::move(decoded).value();
    rest = rest.subspan(entry.num_bytes);
  }
  std::vector<engine::PeerAddress> addresses;
  for (auto& each : found) {
    if (!each) return refuse("no address of rank " + std::to_string(addresses.size()));
    addresses.push_back(std::move(*each));
  }
  return addresses;
}

std::vector<engine::PeerAddress> Rendezvous::read_neighbours(const Blob& root_address) {
  std::vector<std::string> keys;
  std::vector<Blob> blobs;
  const std::vector<int> neighbours = engine::AddressTree::neighbours_of(membership_.rank, membership_.size);
  for (const int neighbour : neighbours) {
    if (neighbour == 0) {
      blobs.push_back(root_address);
    } else {
      keys.push_back(entries_.address_key(round_, neighbour));
    }
  }
  if (!keys.empty()) {
    for (Blob& blob : entries_.get_all(keys)) blobs.push_back(std::move(blob));
  }
  std::vector<engine::PeerAddress> addresses;
  for (const Blob& blob : blobs) addresses.push_back(decode_address(neighbours[addresses.size()], blob));
  return addresses;
}

// Up to the point from which on all ranks below this one have the table, and on rank 0 all ranks.
Result<std::vector<engine::PeerAddress>> Rendezvous::exchange(const Blob& root_address) {
  try {
    AXON_TRY(tree_->connect(read_neighbours(root_address)));
    Result<Blob> gathered = tree_->gather(encode_entry(membership_.rank, own_->address()));
    if (!gathered.ok()) return std::move(gathered.status());
    const Result<Blob> table = tree_->broadcast(std::move(gathered).value());
    if (!table.ok()) return table.status().clone();
    Result<std::vector<engine::PeerAddress>> addresses = decode_table(table.value(), membership_.size);
    if (!addresses.ok()) return addresses;
    const Result<Blob> all_have_it = tree_->gather({});
    if (!all_have_it.ok()) return all_have_it.status().clone();
    return addresses;
  } catch (const c10::Error& failure) {
    return Status(ErrorCode::kTransport, failure.what_without_backtrace());
  } catch (const std::exception& failure) {
    return Status(ErrorCode::kTransport, failure.what());
  }
}

std::vector<engine::PeerAddress> Rendezvous::lead_exchange() {
  RoundEnd outcome{.kind = RoundEnd::Kind::kExchange, .latest_group = latest_group_};
  outcome.root_address = tree_->address().encode();
  entries_.set(entries_.end_key(round_), outcome.encode());
  Result<std::vector<engine::PeerAddress>> addresses = exchange({});
  outcome = {.kind = addresses.ok() ? RoundEnd::Kind::kFormed : RoundEnd::Kind::kFailed, .latest_group = latest_group_};
  if (!addresses.ok()) {
    if (addresses.status().code() != ErrorCode::kCancelled) trouble_ = "Rank 0: " + addresses.status().message();
    if (trouble_.empty()) {
      const Blob trouble = entries_.get(entries_.trouble_key(round_));
      trouble_.assign(trouble.begin(), trouble.end());
    }
    outcome.reason = trouble_;
  }
  announce(outcome);
  if (!addresses.ok()) throw_exchange_failure(outcome.reason);
  // A rank that is not reached reads what was announced. Whatever fails here, the group is formed.
  try {
    if (const Result<Blob> told = tree_->broadcast({}); !told.ok()) log::info(told.status().message());
  } catch (const std::exception& failure) {
    log::info(failure.what());
  }
  return std::move(addresses).value();
}

// Returns how the round ended. It has no addresses if it did so without this rank, which then replaces one that has
// died, or comes to a round of an earlier attempt.
RoundEnd Rendezvous::follow_exchange(const RoundEnd& begun) {
  Result<std::vector<engine::PeerAddress>> addresses = exchange(begun.root_address);
  RoundEnd outcome{.kind = RoundEnd::Kind::kFormed, .latest_group = begun.latest_group};
  if (!addresses.ok() || !tree_->broadcast({}).ok()) {
    if (!addresses.ok() && addresses.status().code() != ErrorCode::kCancelled) {
      trouble_ = "Rank " + std::to_string(membership_.rank) + ": " + addresses.status().message();
      entries_.set(entries_.trouble_key(round_), trouble_);
    }
    outcome = RoundEnd::decode(entries_.get(entries_.outcome_key(round_)));
  }
  if (outcome.kind == RoundEnd::Kind::kFailed) throw_exchange_failure(outcome.reason);
  if (outcome.kind == RoundEnd::Kind::kFormed && addresses.ok()) outcome.addresses = std::move(addresses).value();
  return outcome;
}

// Ranks that come later find out by the end that the round is over. Ranks of the exchange have read that before.
void Rendezvous::announce(const RoundEnd& outcome) {
  entries_.set_all({entries_.outcome_key(round_), entries_.end_key(round_)}, outcome.encode());
}

bool Rendezvous::have_others_given_up() {
  return entries_.has(membership_.rank == 0 ? entries_.trouble_key(round_) : entries_.outcome_key(round_));
}

void Rendezvous::throw_exchange_failure(const std::string& reason) {
  has_told_failure_ = true;
  throw_failure(Status(ErrorCode::kTransport,
                       "[rank " + std::to_string(membership_.rank) + " of group '" + membership_.group +
                           "'] init_process_group: The ranks could not exchange their addresses. " + reason));
}

}  // namespace axon::c10d_backend
