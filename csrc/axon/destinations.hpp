// The memory that the user chooses for the tensors of one message.
//
//   Destinations to(inbound);
//   if (to.ask(where).ok()) inbound.accept(to.buffers(), to.owners());
//
// Up to 32 tensors need no heap allocation.
#pragma once

#include <array>
#include <cstddef>
#include <memory_resource>
#include <span>
#include <string>
#include <vector>

#include "axon/announced.hpp"
#include "base/status.hpp"
#include "memory/buffer.hpp"
#include "memory/owner.hpp"
#include "rpc/core/inbound.hpp"

namespace axon::library {

class Destinations {
 public:
  explicit Destinations(rpc::Inbound& announced);

  // Asks the user for memory. Returns the first error, or ok if Inbound::accept can take all of it.
  Status ask(const Ask& where) noexcept;
  std::span<const Buffer> buffers() const noexcept { return buffers_; }
  std::span<Owner> owners() noexcept { return owners_; }

  // For Announced.
  rpc::Inbound& announced() const noexcept { return announced_; }
  bool has(size_t index);
  void give(size_t index, std::span<std::byte> memory, Owner owner);
  void fail(ErrorCode code, std::string why);

 private:
  bool overlap();

  rpc::Inbound& announced_;
  std::array<std::byte, 2048> bytes_;
  std::pmr::monotonic_buffer_resource memory_{bytes_.data(), bytes_.size()};
  std::pmr::vector<Buffer> buffers_;
  std::pmr::vector<Owner> owners_;
  Status failure_;
};

}  // namespace axon::library
