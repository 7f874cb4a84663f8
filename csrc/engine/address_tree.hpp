// Passes the addresses of a large group's ranks along a tree, in messages of the engine.
//
// Rank r has the children 4r + 1 to 4r + 4. It knows only their addresses and its parent's, with each of which it forms
// a group of two for as long as this object lives. The keys of these groups are derived from standing addresses, so a
// neighbour may send before this rank has formed its side.
//
//   const AddressTree tree(engine, place, is_over);   // other ranks get tree.address()
//   tree.connect(neighbours' addresses)
//   all = tree.gather(own)                            // rank 0: the bytes of all ranks; others: of those below them
//   all = tree.broadcast(all)                         // on all ranks: those of rank 0
//
// Steps: each gather() and each broadcast() takes log₄ n messages, one after another, and log₄ n more with lengths. A
// rank sends a broadcast four times. With eight children, a rank would read ten addresses. These are more than 4 KiB if
// they contain those of several network devices. Large tables would take longer, too: 8 log₈ n > 4 log₄ n.
//
// Used by one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "engine/engine.hpp"

namespace axon::engine {

class AddressTree {
 public:
  struct Place {
    std::string group;
    int rank = 0;
    int size = 1;
    std::chrono::steady_clock::time_point deadline;
  };

  // `is_over` is called after each second of waiting, and returns whether other ranks have given up.
  AddressTree(Engine& engine, Place place, std::function<bool()> is_over);
  ~AddressTree();
  AddressTree(const AddressTree&) = delete;
  AddressTree& operator=(const AddressTree&) = delete;

  const PeerAddress& address() const noexcept { return standing_.address(); }

  // Returns the parent, if there is one, then the children.
  static std::vector<int> neighbours_of(int rank, int size);

  // `addresses` are those of the neighbours, in their order.
  Status connect(const std::vector<PeerAddress>& addresses);

  // A failure names a rank. If `is_over` has returned true, its code is kCancelled.
  Result<std::vector<uint8_t>> gather(std::vector<uint8_t> own);
  // `bytes` are those of rank 0.
  Result<std::vector<uint8_t>> broadcast(std::vector<uint8_t> bytes);

 private:
  class Transfer;
  // A group of two: the parent has rank 0, the child rank 1.
  struct Link {
    int neighbour = 0;
    bool is_child = false;
    std::unique_ptr<const OwnAddress> own;
    std::unique_ptr<Communicator> communicator;
  };

  Link* parent() noexcept { return links_.front().is_child ? nullptr : &links_.front(); }
  std::shared_ptr<Transfer> start(Link& link, Direction direction, std::vector<uint8_t> bytes);
  std::vector<std::shared_ptr<Transfer>> start_send(Link& link, const std::vector<uint8_t>& bytes);
  Status await(Link& link, Transfer& transfer);
  Status send(const std::vector<Link*>& links, const std::vector<uint8_t>& bytes);
  Result<std::vector<uint8_t>> receive(Link& link);

  Engine& engine_;
  const Place place_;
  const std::function<bool()> is_over_;
  const StandingAddress standing_;
  std::vector<Link> links_;  // the parent's first
};

}  // namespace axon::engine
