// The entries of a rendezvous in its group's store (c10d/rendezvous.hpp), all calls of which end at one deadline.
//
//   RoundEntries entries(store, size, timeout);
//   const Blob end = entries.get(entries.end_key(round));   // waits until the entry is there
//
// Used by one thread. Calls throw what the store throws.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "c10d/round_end.hpp"

namespace axon::c10d_backend {

class RoundEntries {
 public:
  RoundEntries(c10d::Store& store, int size, std::chrono::milliseconds timeout);

  std::string round_key() const { return prefix_ + "round"; }
  std::string address_key(int64_t round, int rank) const { return key(round, std::to_string(rank)); }
  std::vector<std::string> address_keys(int64_t round, int first_rank, int last_rank) const;
  std::string end_key(int64_t round) const { return key(round, "end"); }
  std::string next_key(int64_t round) const { return key(round, "next"); }
  std::string outcome_key(int64_t round) const { return key(round, "outcome"); }
  std::string trouble_key(int64_t round) const { return key(round, "trouble"); }

  // Wait until there are values.
  Blob get(const std::string& key);
  int64_t get_number(const std::string& key);
  std::vector<Blob> get_all(const std::vector<std::string>& keys);
  void await_all(const std::vector<std::string>& keys);

  void set(const std::string& key, const Blob& value) { store_.set(key, value); }
  void set(const std::string& key, const std::string& value) { store_.set(key, value); }
  // In one call if the store has one for several keys, else in their order.
  void set_all(const std::vector<std::string>& keys, const Blob& value);
  int64_t count_up(const std::string& key) { return store_.add(key, 1); }
  bool has_all(const std::vector<std::string>& keys) { return store_.check(keys); }
  bool has(const std::string& key) { return has_all({key}); }
  void forget(const std::string& key) noexcept;

  std::chrono::steady_clock::time_point deadline() const noexcept { return deadline_; }
  // Returns at least a millisecond: zero would mean no limit.
  std::chrono::milliseconds time_left() const;

 private:
  std::string key(int64_t round, const std::string& name) const { return prefix_ + std::to_string(round) + "/" + name; }

  c10d::Store& store_;
  const std::string prefix_;
  const std::chrono::steady_clock::time_point deadline_;
};

}  // namespace axon::c10d_backend
