// The grants that a peer has given to this process, by which it uses memory of the peer.
//
// A revocation may overtake its grant. It is then kept until the grant arrives, or no opening awaits its answer.
//
// Owned by Initiator; progress owner only.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include "rpc/core/one_sided/remote_memory.hpp"

namespace axon::rpc {

class OpenedGrants {
 public:
  static constexpr size_t kMostRevokedEarly = 65'536;

  void begin_opening() noexcept { ++num_opening_; }
  void end_opening() noexcept;

  void add(const std::shared_ptr<RemoteMemory>& memory);
  void erase(uint32_t grant) noexcept { opened_.erase(grant); }
  // From now on, no transfer uses the grant. Returns false if devices still use the memory. Returns false, too, if that
  // cannot be kept in mind for a grant that is yet to arrive: the owner has not granted that much.
  bool revoke(uint32_t grant) noexcept;
  // The connection has ended.
  void end() noexcept;

 private:
  // They return whether no use is left, and unmap the memory then.
  static bool revoke(RemoteMemory& memory) noexcept;
  static bool end_uses(RemoteMemory& memory) noexcept;

  std::unordered_map<uint32_t, std::weak_ptr<RemoteMemory>> opened_;  // by grant
  std::unordered_set<uint32_t> revoked_early_;                        // empty while no opening awaits its answer
  size_t num_opening_ = 0;
};

}  // namespace axon::rpc
