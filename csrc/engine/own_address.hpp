// This process's address for a group that it is going to form. What the other ranks send to the group before it is
// formed here is kept for as long as this lives; if the group has not been formed by then, nobody ever takes it, and it
// is let go.
//
//   const OwnAddress own = engine.make_address();
//   … put own.address() where the other ranks read it, read theirs, engine.form(…) …
//
// Goes before its engine does, on any thread.
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
  OwnAddress(Engine& engine, PeerAddress peer_address) noexcept : engine_(engine), address_(std::move(peer_address)) {}

  Engine& engine_;
  const PeerAddress address_;
};

}  // namespace axon::engine
