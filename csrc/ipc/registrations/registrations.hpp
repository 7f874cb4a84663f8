// Tensors that peers' kernels reach: which segments of one GPU this process offers, and where those of its peers are
// mapped here.
//
//   IpcLocation location = arena->registrations().locate(data, num_bytes);   // told to the peers
//   team.registrations[rank] = peer_slice.arena->registrations();   // where kernels look
//
// A segment is what was allocated as one: a cudaMalloc of torch's allocator, or the granules of an expandable segment
// that a tensor spans. Its number means the same memory for ever: memory that is freed takes its number with it, and
// what comes to the same address gets another one. So a place that a graph holds leads to its tensor or nowhere.
//
// Nobody waits for a peer, and no message is sent. The owner publishes its segments on an export table in its own
// memory, which importers read (process_vm_readv) and whose descriptors they fetch (pidfd_getfd), in the one thread of
// the cache_thread. What it has mapped it enters into a table in device memory, one a peer process. Until then kernels
// find nothing there and leave the work to others. What has been freed goes from the table at once; its mapping is
// closed when none of our kernels can be held up by that, and until then the memory is not free for others.
//
// Lives as long as the process. Any thread, also beside a capture.
#pragma once

#include <memory>
#include <span>

#include "base/status.hpp"
#include "cuda/device_types.hpp"
#include "ipc/launch_ledger.hpp"
#include "ipc/peer_process.hpp"
#include "ipc/registrations/export_table.hpp"

namespace axon::ipc {

struct RegistrationCounts {
  size_t num_exported = 0;
  size_t num_imported = 0;
  size_t num_retired = 0;  // dropped by their owners, and still mapped
};

// A peer process that is followed.
struct RegistrationOwner {
  const cuda::RegistrationEntry* table;  // in device memory: what is mapped of it
};

class Registrations {
 public:
  // For tensors and kernels of this device; `incarnation` is that of its arena. `launches` are to stay, too.
  static Result<std::unique_ptr<Registrations>> create(int device, uint64_t incarnation, LaunchLedger& launches);
  ~Registrations();

  // Where a tensor of this device is; segment 0 if peers cannot map it, which is said once. Microseconds, but for the
  // first tensor of a segment: then up to a millisecond.
  cuda::IpcLocation locate(const void* data, size_t num_bytes);

  // From now on maps what the peer publishes on that export table, as long as it lives; what several follow is mapped
  // once. To be kept as long as kernels use the table. No process: a rank of this one, whose tensors are not looked
  // for.
  std::shared_ptr<const RegistrationOwner> follow(ExportTableLocation export_table,
                                                  std::shared_ptr<const PeerProcess> process);

  // What is mapped of a peer's segment, for the host; none: not yet, or no more. Its owner keeps it there as long as it
  // keeps a tensor in it.
  std::span<std::byte> find(const RegistrationOwner& owner, uint32_t number) const;
  // Waits until what the peer has published by now is mapped. Fails if this segment is not, saying why, and after two
  // seconds: the driver may wait for a GPU that is busy.
  Status await(const RegistrationOwner& owner, uint32_t number);

  // To be told to peers: where the export table is in this process.
  uint64_t export_table_address() const noexcept;

  RegistrationCounts counts() const;

 private:
  struct Parts;
  explicit Registrations(std::unique_ptr<Parts> parts) noexcept;

  std::unique_ptr<Parts> parts_;
};

}  // namespace axon::ipc
