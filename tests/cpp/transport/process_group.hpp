// Peers in real processes, which are forked before any of them has a transport, and share a page of memory.
//
//   ProcessGroup group(2, [](int rank, ProcessGroup& group) { …EXPECT_… });   // runs in each child
//   EXPECT_TRUE(group.wait());
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <vector>

#include "transport/node.hpp"

namespace axon::transport {

class ProcessGroup {
 public:
  using Body = std::function<void(int rank, ProcessGroup& group)>;

  ProcessGroup(int num_processes, Body body);
  // Kills the children that still run.
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  // Called in children. All of them wait for each other here. Each publishes its address and adds all ranks as peers,
  // in order of rank, itself included.
  std::vector<PeerId> meet(int rank, Node& node, bool same_host);
  // Waits until all live children have called this.
  void barrier(int rank);
  // Drives the node while it waits.
  void barrier(int rank, Node& node);

  // Called in any process. Returns when the process has ended.
  void kill(int rank);

  // Called in the parent. Returns whether all children that were not killed ended without a failed expectation.
  bool wait(std::chrono::seconds timeout = std::chrono::seconds(60));

 private:
  static constexpr size_t kLongestAddress = 4096;
  static constexpr int kMostProcesses = 8;

  struct Slot {
    std::atomic<int> pid;
    std::atomic<uint32_t> num_barriers;
    std::atomic<bool> killed;
    size_t address_num_bytes;
    std::byte address[kLongestAddress];
  };

  bool all_arrived(uint32_t num_barriers) const;

  const int num_processes_;
  Slot* slots_;
  std::vector<pid_t> children_;
};

}  // namespace axon::transport
