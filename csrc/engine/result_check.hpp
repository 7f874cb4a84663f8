// Compares the results of collectives that all ranks must have alike: those of all_reduce, broadcast and all_gather. A
// group has one with AXON_CHECK_RESULTS=1. Each rank sends digests of its results to the next rank, which compares them
// with its own. If two differ, it asks all ranks for theirs, and names those that differ from most others.
//
//   ResultCheck::note(check, {.number = 5, .digest = digest, .call = record});   // within a complete()
//   if (Status verdict = check->tick(now); !verdict.ok()) fail(verdict);
//
// Shared by its group and by results on their way, which may outlive the group. Progress owner only, except for what is
// marked.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "collectives/collective.hpp"
#include "engine/call_record.hpp"
#include "messaging/messenger.hpp"
#include "messaging/team.hpp"

namespace axon::engine {

class Engine;

class ResultCheck {
 public:
  // Ranks number the collectives of each kind alike: those on host memory, and those that only a device sees.
  enum class Series : uint32_t { kHost, kDevice };

  struct Result {
    Series series = Series::kHost;
    uint32_t number = 0;
    uint64_t digest = 0;
    CallRecord call;
  };

  // The team must live as long as its group calls tick() and passes messages on.
  ResultCheck(Engine& engine, const messaging::Team& team);

  // Returns whether the ranks must have the same result. Any thread.
  static bool covers(transport::OperationKind kind) noexcept;
  // Returns the digest of a result in host memory. Any thread.
  static uint64_t digest_of(const collectives::CollectiveArguments& arguments) noexcept;
  // Returns the number of the next collective that only a device sees. One thread at a time.
  uint32_t next_on_device() noexcept { return ++num_on_device_; }
  // Notes a result soon. Any thread that completes an operation.
  static void note(std::shared_ptr<ResultCheck> check, Result result);
  void note_now(Result result);

  // Returns whether tick() has something to do soon.
  bool has_work() const noexcept { return !noted_.empty() || inquiry_.has_value(); }
  // Sends and compares what is new. Returns a failure once it is known whose result differs.
  Status tick(sync::Clock::time_point now);

  // Another rank sends the digests of its results, asks for one of this rank, or answers.
  void on_digests(int source, const transport::Payload& payload);
  void on_query(int source, const transport::Payload& payload);
  void on_reply(int source, const transport::Payload& payload);

 private:
  // As it travels; see docs/wire.md.
  struct Entry {
    Series series = Series::kHost;
    uint32_t number = 0;
    uint64_t digest = 0;

    bool is_of_same_call(const Entry& other) const noexcept { return series == other.series && number == other.number; }
  };
  struct Query {
    int source;
    Entry asked;
  };
  struct Inquiry {
    Result own;
    std::vector<std::optional<uint64_t>> digests;  // by rank
    sync::Clock::time_point asked_at;
  };

  static Entry entry_of(const Result& result) noexcept { return {result.series, result.number, result.digest}; }
  static uint64_t key_of(const Entry& entry) noexcept {
    return static_cast<uint64_t>(entry.series) << 32 | entry.number;
  }
  static std::vector<Entry> entries_of(const transport::Payload& payload);
  const Result* find(const Entry& entry) const noexcept;
  void take_noted();
  void compare(const Result& own, uint64_t theirs);
  int previous() const noexcept { return (team_.rank + team_.size() - 1) % team_.size(); }
  void send_entries(int destination, transport::MessageKind kind, const std::vector<Entry>& entries);
  Status verdict() const;

  Engine& engine_;
  const messaging::Team& team_;
  uint32_t num_on_device_ = 0;

  std::vector<Result> noted_;                      // since the last tick() or message
  std::unordered_map<uint64_t, Result> own_;       // by key
  std::deque<uint64_t> order_;                     // their keys, in the order of their ends
  std::vector<Entry> unsent_;                      // own ones that the next rank does not have yet
  std::unordered_map<uint64_t, uint64_t> theirs_;  // by key: digests of the previous rank that this rank lacks yet
  std::vector<Query> queries_;                     // about results that this rank does not have yet
  std::optional<Inquiry> inquiry_;
};

}  // namespace axon::engine
