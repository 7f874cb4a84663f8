// Fake memory of processes, for tests without a GPU.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <set>

#include "ipc/registrations/export_table.hpp"
#include "ipc/registrations/exports.hpp"

namespace axon::testing {

// Reads this process's memory as if it were another's. `before_read` does what a peer does between two reads.
class FakePeerMemory : public ipc::PeerMemory {
 public:
  Status read(uint64_t address, std::span<std::byte> bytes) const override {
    if (before_read) before_read();
    ++num_reads;
    if (is_gone) return {ErrorCode::kInternal, "no such process"};
    std::memcpy(bytes.data(), reinterpret_cast<const void*>(address), bytes.size());
    return Status();
  }

  std::function<void()> before_read;
  bool is_gone = false;
  mutable int num_reads = 0;
};

// Allocations as a driver reports them.
class FakeOwnMemory final : public ipc::OwnMemory {
 public:
  enum class Kind { kLegacy, kShareable, kPool };

  // An earlier allocation at this address is freed.
  void allocate(uint64_t base, uint64_t num_bytes, Kind kind, int device = 0) {
    free(base, num_bytes);
    allocations_[base] = {.id = next_id_++,
                          .base = base,
                          .num_bytes = num_bytes,
                          .device = device,
                          .has_descriptors = kind == Kind::kShareable,
                          .has_legacy_handle = kind == Kind::kLegacy};
  }
  void map_again(uint64_t base, uint64_t other_base) {
    cuda::Allocation& other = allocations_[other_base] = allocations_.at(base);
    other.base = other_base;
  }
  void free(uint64_t base, uint64_t num_bytes) {
    std::erase_if(allocations_, [&](const auto& other) {
      return other.second.base < base + num_bytes && base < other.second.base + other.second.num_bytes;
    });
  }

  Result<cuda::Allocation> allocation_at(uint64_t address) const override {
    if (is_mute) return Status(ErrorCode::kInternal, "the driver is gone");
    for (const auto& [base, allocation] : allocations_) {
      if (base <= address && address < base + allocation.num_bytes) return allocation;
    }
    return cuda::Allocation{};
  }
  Result<FileDescriptor> share(const cuda::Allocation&) const override {
    ++num_shared;
    return FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  Result<cuda::LegacyHandle> legacy_handle_of(const cuda::Allocation& allocation) const override {
    cuda::LegacyHandle handle{};
    handle[0] = static_cast<std::byte>(allocation.id);
    return handle;
  }

  bool is_mute = false;
  mutable int num_shared = 0;

 private:
  std::map<uint64_t, cuda::Allocation> allocations_;
  uint64_t next_id_ = 100;
};

}  // namespace axon::testing
