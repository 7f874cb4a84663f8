// Tensors on a GPU that a process lends another one of its host: read where they lie, instead of through the host.
//
//   Result<ExposedLocation> location = expose(device, data, num_bytes);    // the owner tells its peer, and keeps the
//   memory so Result<ZeroCopyReader*> reader = ZeroCopyReader::of(device);          // the peer, for a GPU that reaches
//   the owner's AXON_TRY(reader.value()->read(pid, location, target, stream));    // enqueued; the owner is told behind
//   it (stream_marker.hpp)
//
// The owner publishes the tensor's segment as it does for kernels of groups (registrations/registrations.hpp), and the
// peer maps it: at the first tensor of a segment that takes some milliseconds.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/status.hpp"
#include "ipc/arena.hpp"
#include "ipc/peer_process.hpp"
#include "ipc/stream_order.hpp"
#include "memory/buffer.hpp"

namespace axon::ipc {

// What an owner tells. Its peer believes none of it before it is mapped.
struct ExposedLocation {
  uint64_t incarnation = 0;   // of the owner's arena on that GPU
  uint64_t export_table = 0;  // where its export table is, in its memory
  uint64_t offset = 0;        // in the segment
  uint32_t registration = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ExposedLocation) == 32);

// Fails where peers cannot map the memory, which is also said once.
Result<ExposedLocation> expose(int device, const void* data, size_t num_bytes);

// Lives as long as the process. Any thread.
class ZeroCopyReader {
 public:
  // As many arenas of one process are looked for: more than it has GPUs.
  static constexpr size_t kMostArenas = 16;

  static Result<ZeroCopyReader*> of(int device);

  // Copies `target.num_bytes` from there, in a process of this host, in the order of a stream of this device. Waits for
  // the mapping (Registrations::await). Fails with kInvalidArgument if the stream is captured, with kPeerLost if the
  // memory is not mapped.
  Status read(int32_t pid, const ExposedLocation& location, Buffer target, cuda::StreamView stream);

 private:
  struct Owner {
    std::shared_ptr<const PeerProcess> process;  // shared with those who look for its segments
    std::shared_ptr<const RegistrationOwner> registrations;
  };
  using ArenaOfProcess = std::pair<int32_t, uint64_t>;  // its incarnation

  ZeroCopyReader(int device, Arena& arena, cuda::Event order) noexcept
      : device_(device), arena_(arena), order_(std::move(order)) {}

  Result<std::shared_ptr<const RegistrationOwner>> meet(int32_t pid, const ExposedLocation& location);
  void forget_ended();

  const int device_;
  Arena& arena_;
  const StreamOrder order_;  // by which the ledger of launches knows our copies

  std::mutex mutex_;  // guards what follows
  std::map<ArenaOfProcess, Owner> owners_;
};

}  // namespace axon::ipc
