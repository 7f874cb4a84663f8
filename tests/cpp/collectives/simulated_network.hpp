// A network of n ranks in one thread: every message, completion and fetch is an event that happens when its rank makes
// progress, in order (seed 0) or in an order that the seed decides. Faults are injected at a given send.
//
// What it shares with the real ones: small payloads come with the message, large ones are fetched, and a send of those
// is done only then; a send to a killed rank fails.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "transport/transport.hpp"

namespace axon {

class SimulatedNetwork {
 public:
  static constexpr size_t kLargestEager = 1024;
  static constexpr uint64_t kNever = UINT64_MAX;

  struct Faults {
    uint64_t fail_at_send = kNever;  // counted over all ranks from 0: that send fails
    uint64_t kill_at_send = kNever;  // at that send, `victim` dies
    int victim = 0;
  };

  SimulatedNetwork(int num_ranks, uint64_t seed);
  ~SimulatedNetwork();

  Transport& transport(int rank) noexcept;
  void inject(const Faults& faults) noexcept { faults_ = faults; }
  bool is_alive(int rank) const noexcept { return alive_[static_cast<size_t>(rank)]; }
  // Nothing is under way.
  bool is_quiet() const noexcept;
  uint64_t num_sends() const noexcept { return num_sends_; }

 private:
  class Endpoint;

  void kill(int rank);

  const uint64_t seed_;
  std::mt19937_64 random_;
  Faults faults_;
  uint64_t num_sends_ = 0;
  std::vector<bool> alive_;
  std::vector<std::unique_ptr<Endpoint>> endpoints_;
};

}  // namespace axon
