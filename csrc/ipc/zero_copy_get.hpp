// Zero-copy get of a GPU tensor between processes of one host: the reader copies it from the owner's memory, without
// host staging.
//
//   Result<ExposedLocation> location = expose(device, data, num_bytes);      // the owner sends it, keeps the memory
//   Result<ZeroCopyReader*> reader = ZeroCopyReader::of(device);             // the reader, for a GPU with peer access
//   AXON_TRY(reader.value()->read(pid, location.value(), target, stream));   // enqueues the copy
//
// The reader acknowledges to the owner after a marker on its stream (stream_marker.hpp) has passed.
//
// The owner publishes the tensor's registration as it does for kernels of groups (registrations/registrations.hpp), and
// the reader maps it. The first tensor of a registration takes some milliseconds.
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

// What an owner sends. The reader trusts none of it before it is mapped.
struct ExposedLocation {
  uint64_t incarnation = 0;   // of the owner's arena on that GPU
  uint64_t export_table = 0;  // address of the owner's export table, in its memory
  uint64_t offset = 0;        // in the registration
  uint32_t registration = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ExposedLocation) == 32);

// Fails if peers cannot map the memory, which is also logged once.
Result<ExposedLocation> expose(int device, const void* data, size_t num_bytes);

// Lives as long as the process. Thread-safe.
class ZeroCopyReader {
 public:
  // Limit of arenas per process, more than a process has GPUs.
  static constexpr size_t kMostArenas = 16;

  static Result<ZeroCopyReader*> of(int device);

  // Copies `target.num_bytes` from that location, in a process of this host, in the order of a stream of this device.
  // Waits for the mapping (Registrations::await). Fails with kInvalidArgument if the stream is under capture, and with
  // kPeerLost if the memory is not mapped.
  Status read(int32_t pid, const ExposedLocation& location, Buffer target, cuda::StreamView stream);

  // Waits until memory of this length is mapped at that location, and fails as read() does otherwise.
  Status await(int32_t pid, const ExposedLocation& location, size_t num_bytes);
  // Returns where it is mapped. The caller launches what uses it, and notes the launch, while it holds a
  // LaunchLedger::Launching of this device: an ended owner's memory stays mapped for that long.
  Result<std::byte*> find(int32_t pid, const ExposedLocation& location, size_t num_bytes);

 private:
  struct Owner {
    std::shared_ptr<const PeerProcess> process;  // shared with the import of its registrations
    std::shared_ptr<const RegistrationOwner> registrations;
  };
  using ArenaOfProcess = std::pair<int32_t, uint64_t>;  // pid and the arena's incarnation

  ZeroCopyReader(int device, Arena& arena, cuda::Event order) noexcept
      : device_(device), arena_(arena), order_(std::move(order)) {}

  Result<std::shared_ptr<const RegistrationOwner>> meet(int32_t pid, const ExposedLocation& location);
  void forget_ended();

  const int device_;
  Arena& arena_;
  const StreamOrder order_;  // identifies our copies in the launch ledger

  std::mutex mutex_;  // guards the members below
  std::map<ArenaOfProcess, Owner> owners_;
};

}  // namespace axon::ipc
