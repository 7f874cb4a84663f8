// Forms a group: exchanges addresses with the other ranks at the group's store (c10d/rendezvous.hpp), then forms the
// group in the process's engine.
#pragma once

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "c10d/rendezvous.hpp"
#include "engine/communicator.hpp"

namespace axon::c10d_backend {

// Starts the process's engine if this is its first group. Throws DistBackendError, which names the ranks that did not
// join.
std::shared_ptr<engine::Communicator> join(c10d::Store& store, const Membership& membership);

// Returns a group of this process alone, whose calls fail until reconfigure() gives it members. Needs no store.
std::shared_ptr<engine::Communicator> form_without_members(const Membership& membership);

}  // namespace axon::c10d_backend
