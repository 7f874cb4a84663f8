#include "transport/process_group.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace axon::transport {

ProcessGroup::ProcessGroup(int num_processes, Body body) : num_processes_(num_processes) {
  void* page = mmap(nullptr, kMostProcesses * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || num_processes > kMostProcesses) throw std::runtime_error("no memory to share");
  slots_ = new (page) Slot[kMostProcesses]();
  std::fflush(nullptr);
  for (int rank = 0; rank < num_processes; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      slots_[rank].pid = getpid();
      body(rank, *this);
      std::fflush(nullptr);
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children_.push_back(child);
  }
}

ProcessGroup::~ProcessGroup() {
  for (const pid_t child : children_) {
    ::kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
  munmap(slots_, kMostProcesses * sizeof(Slot));
}

std::vector<PeerId> ProcessGroup::meet(int rank, Node& node, bool same_host) {
  const std::span<const std::byte> address = node.transport().address();
  if (address.size() > kLongestAddress) throw std::runtime_error("address too long");
  std::memcpy(slots_[rank].address, address.data(), address.size());
  slots_[rank].address_num_bytes = address.size();
  barrier(rank);
  std::vector<PeerId> peers;
  for (int other = 0; other < num_processes_; ++other) {
    const Slot& slot = slots_[other];
    peers.push_back(node.meet({slot.address, slot.address_num_bytes}, same_host || other == rank));
  }
  return peers;
}

bool ProcessGroup::all_arrived(uint32_t num_barriers) const {
  for (int rank = 0; rank < num_processes_; ++rank) {
    if (!slots_[rank].killed && slots_[rank].num_barriers < num_barriers) return false;
  }
  return true;
}

void ProcessGroup::barrier(int rank) {
  const uint32_t num_barriers = ++slots_[rank].num_barriers;
  while (!all_arrived(num_barriers)) sched_yield();
}

void ProcessGroup::barrier(int rank, Node& node) {
  const uint32_t num_barriers = ++slots_[rank].num_barriers;
  while (!all_arrived(num_barriers)) node.transport().progress();
}

void ProcessGroup::kill(int rank) {
  slots_[rank].killed = true;
  const int process = static_cast<int>(syscall(SYS_pidfd_open, slots_[rank].pid.load(), 0));
  ::kill(slots_[rank].pid, SIGKILL);
  pollfd ended{.fd = process, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, 10'000), 1);
  close(process);
}

bool ProcessGroup::wait(std::chrono::seconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  bool succeeded = true;
  for (int rank = 0; rank < num_processes_; ++rank) {
    int status = 0;
    while (waitpid(children_[rank], &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const bool ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!ended_well && !slots_[rank].killed) succeeded = false;
  }
  children_.clear();
  return succeeded;
}

}  // namespace axon::transport
