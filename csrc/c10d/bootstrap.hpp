// How the ranks of a group find each other: each puts its card into the group's store and reads all others'.
//
// Four calls a rank, whatever the size:
//   add("axon/joined", 1)              counts joins; every `size` of them are one incarnation of the group's name
//   set("axon/<incarnation>/<rank>")   this rank's card
//   multiGet(all ranks' cards)         waits for the last; get() one by one where the store lacks multiGet
//   deleteKey(the incarnation before)  everybody has read that one, or could not have come here
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "comm/communicator.hpp"

namespace axon {

struct Membership {
  std::string group;
  int rank = 0;
  int global_rank = 0;  // in the job; what lines and traces are signed with
  int size = 1;
  std::chrono::milliseconds timeout{0};
};

// Starts the process's engine if this is its first group. Throws DistBackendError, naming the ranks that did not come.
std::shared_ptr<Communicator> join(c10d::Store& store, const Membership& membership);

}  // namespace axon
