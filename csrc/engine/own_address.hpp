// This process's address for a group that it is about to form. Messages that the other ranks send to the group before
// it is formed here are kept while this lives. If the group has not been formed by then, they are dropped.
//
//   const OwnAddress own = engine.make_address();
//   store.set(key, own.address().encode());   // the other ranks read it; read theirs, then call engine.form(…)
//
// Must be destroyed before its engine, on any thread.
#pragma once

#include <utility>

#include "engine/peer_address.hpp"

namespace axon::engine {

class Engine;

class OwnAddress {
 public:
  ~OwnAddress();
  OwnAddress(const OwnAddress&) = delete;
  OwnAddress& operator=(const OwnAddress&) = delete;

  const PeerAddress& address() const noexcept { return address_; }

 private:
  friend class Engine;
  friend class StandingAddress;
  OwnAddress(Engine& engine, PeerAddress peer_address) noexcept : engine_(engine), address_(std::move(peer_address)) {}

  Engine& engine_;
  const PeerAddress address_;
};

}  // namespace axon::engine
