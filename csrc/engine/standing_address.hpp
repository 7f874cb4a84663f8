// This process's address for a group whose members change. It stays the same in all instances of the group; an instance
// has a number that its members know, and each address has a key of its own in it.
//
//   const StandingAddress standing = engine.make_standing_address();  // other processes get standing.address()
//   const OwnAddress own = standing.in_instance(7);                   // each member, for the same number
//   engine.form({.rank = …, .addresses = …});                         // each member's address.in_instance(7)
//
// Messages that other members send to an instance before it is formed here are kept, also before in_instance() is
// called. Must be destroyed before its engine, on any thread.
#pragma once

#include <utility>

#include "engine/own_address.hpp"
#include "engine/peer_address.hpp"

namespace axon::engine {

class Engine;

class StandingAddress {
 public:
  ~StandingAddress();
  StandingAddress(const StandingAddress&) = delete;
  StandingAddress& operator=(const StandingAddress&) = delete;

  const PeerAddress& address() const noexcept { return address_; }
  OwnAddress in_instance(uint64_t number) const;

 private:
  friend class Engine;
  StandingAddress(Engine& engine, PeerAddress peer_address) noexcept
      : engine_(engine), address_(std::move(peer_address)) {}

  Engine& engine_;
  const PeerAddress address_;
};

}  // namespace axon::engine
