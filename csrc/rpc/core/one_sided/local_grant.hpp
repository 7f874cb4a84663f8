// A grant that a runtime of this process has given to another runtime of this process.
//
//   const LocalGrant grant(std::move(info));      // owner: any message with grant.proof() refers to it
//   if (auto info = LocalGrant::take(proof)) …    // initiator: the grant is of this process; once
//
// That a peer is in this process is only its claim, and the addresses in its messages are, too. The proof is a random
// number that never leaves the process, so only what is found here may be copied without the owner.
//
// Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "rpc/core/one_sided/messages.hpp"

namespace axon::rpc {

class LocalGrant {
 public:
  explicit LocalGrant(GrantInfo info);
  ~LocalGrant();
  LocalGrant(const LocalGrant&) = delete;
  LocalGrant& operator=(const LocalGrant&) = delete;

  uint64_t proof() const noexcept { return proof_; }
  static std::optional<GrantInfo> take(uint64_t proof);

 private:
  const uint64_t proof_;
};

}  // namespace axon::rpc
