// How a process joins a group: it meets the other ranks at the group's store (c10d/rendezvous.hpp), and its engine
// forms the group with them.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "c10d/rendezvous.hpp"
#include "engine/communicator.hpp"

namespace axon::c10d_backend {

// Starts the process's engine if this is its first group. Throws DistBackendError, naming the ranks that did not come.
std::shared_ptr<engine::Communicator> join(c10d::Store& store, const Membership& membership);

}  // namespace axon::c10d_backend
