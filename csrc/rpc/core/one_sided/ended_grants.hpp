// Grants of connections that this end has closed before the peers could confirm that they use the memory no more. The
// memory is held until they do, or until they end.
//
//   ended.add({.key = own_key, .peer = peer, .name = name, .grants = …});   // the peer has been asked to confirm
//
// Owned by Exposed; progress owner only.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "engine/engine.hpp"
#include "messaging/messenger.hpp"
#include "rpc/core/one_sided/region.hpp"

namespace axon::rpc {

class EndedGrants {
 public:
  using Grants = std::unordered_map<uint32_t, std::shared_ptr<Region>>;  // regions are shared with the runtime

  struct Ended {
    uint64_t key = 0;  // of the connection, to which the peer sends its answers
    transport::PeerId peer = 0;
    std::string name;  // of the peer
    Grants grants;
  };

  EndedGrants(engine::Engine& engine, Regions& regions) noexcept : engine_(engine), regions_(regions) {}
  EndedGrants(const EndedGrants&) = delete;
  EndedGrants& operator=(const EndedGrants&) = delete;

  void add(Ended ended);
  bool is_empty() const noexcept { return waiting_.empty(); }
  // Regions::on_peer_lost() finds out whether the peer still uses the memory.
  void on_peer_lost(transport::PeerId peer) noexcept;
  // No answer arrives any more.
  void on_transport_gone() noexcept { waiting_.clear(); }

 private:
  class Waiting final : public messaging::Addressee {
   public:
    Waiting(EndedGrants& all, Ended ended) noexcept : all_(all), ended_(std::move(ended)) {}
    const Ended& ended() const noexcept { return ended_; }
    // Both may destroy this object.
    void on_message(const transport::CallHeader& header, const transport::Payload& payload) noexcept override;
    void on_message(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept override;

   private:
    void release(Grants::const_iterator grant) noexcept;

    EndedGrants& all_;
    Ended ended_;
  };

  void forget(const Waiting& waiting) noexcept;

  engine::Engine& engine_;
  Regions& regions_;
  std::list<Waiting> waiting_;
};

}  // namespace axon::rpc
