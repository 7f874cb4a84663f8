// This process's card for a group that it is going to form. What the other ranks send to the group before it is formed
// here is kept for as long as this lives; if the group has not been formed by then, nobody ever takes it, and it is let
// go.
//
//   const OwnCard own = engine.make_card();
//   … put own.card() where the other ranks read it, read theirs, engine.form(…) …
//
// Goes before its engine does, on any thread.
#pragma once

#include <utility>

#include "engine/peer_address.hpp"

namespace axon {

class Engine;

class OwnCard {
 public:
  ~OwnCard();
  OwnCard(const OwnCard&) = delete;
  OwnCard& operator=(const OwnCard&) = delete;

  const PeerCard& card() const noexcept { return card_; }

 private:
  friend class Engine;
  OwnCard(Engine& engine, PeerCard card) noexcept : engine_(engine), card_(std::move(card)) {}

  Engine& engine_;
  const PeerCard card_;
};

}  // namespace axon
