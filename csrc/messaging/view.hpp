// Some of an operation's ranks, which run an algorithm among themselves: all ranks of the group, those of one host, or
// one of each host. A view numbers its ranks from 0, and gives their messages slots of their own.
//
//   View everyone(exchange);
//   View local(exchange, {.ranks = topology.ranks_on(host), .rank = local_index, .first_slot = 4096, …});
//   co_await direct(local, arguments);     // peers, shards and the root are numbered as in the view
//   local.release_scratch();
//
// No store, key or message makes a view: all ranks derive the same ones from the topology. Algorithms are written
// against views, so they serve as stages of hierarchical ones. Progress owner only.
#pragma once

#include <array>
#include <span>

#include "messaging/exchange.hpp"

namespace axon::messaging {

class View {
 public:
  struct Subset {
    std::span<const int> ranks;  // of the group, by rank in the view; must outlive the view
    int rank = 0;                // this process's rank in the view
    // Two views that share two ranks must not use the same slots at once.
    uint32_t first_slot = 0;
    bool on_one_host = false;
  };

  explicit View(Exchange& exchange, uint32_t first_slot = 0) noexcept
      : exchange_(exchange),
        rank_(exchange.rank()),
        size_(exchange.size()),
        first_slot_(first_slot),
        on_one_host_(exchange.topology().is_one_host()) {}
  View(Exchange& exchange, const Subset& subset) noexcept
      : exchange_(exchange),
        ranks_(subset.ranks),
        rank_(subset.rank),
        size_(static_cast<int>(subset.ranks.size())),
        first_slot_(subset.first_slot),
        on_one_host_(subset.on_one_host) {}

  Exchange& exchange() const noexcept { return exchange_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  bool on_one_host() const noexcept { return on_one_host_; }
  // Returns whether rails speed up long messages between its ranks.
  bool has_rails() const noexcept { return !on_one_host_ && exchange_.has_rails(); }
  SizeClassPool& size_class_pool() const noexcept { return exchange_.size_class_pool(); }

  // The group's rank of each rank in the view; empty: a view of all ranks.
  std::span<const int> ranks() const noexcept { return ranks_; }
  uint32_t first_slot() const noexcept { return first_slot_; }

  // Returns memory that lives until release_scratch() or as long as the exchange: after the algorithm has failed,
  // transfers may still read and write it. Page-aligned, at least as long as requested; at most kMostScratches times.
  Buffer scratch(size_t num_bytes) { return scratches_[num_scratches_++] = exchange_.scratch(num_bytes); }
  // Call it only after the algorithm has succeeded: then no transfer uses the memory any more.
  void release_scratch() noexcept {
    while (num_scratches_ > 0) exchange_.release_scratch(scratches_[--num_scratches_]);
  }

 private:
  static constexpr size_t kMostScratches = 2;

  Exchange& exchange_;
  std::span<const int> ranks_;
  int rank_;
  int size_;
  uint32_t first_slot_ = 0;
  bool on_one_host_;
  std::array<Buffer, kMostScratches> scratches_;
  size_t num_scratches_ = 0;
};

inline Batch::Batch(const View& view) noexcept
    : exchange_(view.exchange()), ranks_(view.ranks()), first_slot_(view.first_slot()) {}

}  // namespace axon::messaging
