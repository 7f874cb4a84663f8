// Tensors that peers' kernels access: the registrations that this process exports of one GPU, and the mappings of its
// peers' registrations.
//
//   IpcLocation location = arena->registrations().locate(data, num_bytes);   // sent to the peers
//   team.registrations[rank] = peer_slice.arena->registrations();            // where kernels look
//
// A registration covers memory that was allocated as one: a cudaMalloc of torch's allocator, or the granules of an
// expandable segment that a tensor spans. Its number always refers to the same memory. When memory is freed, its number
// is retired; new memory at the same address gets another number. A location held by a graph therefore leads to its
// tensor or to nothing.
//
// No thread waits for a peer, and no message is sent. The owner publishes its registrations in an export table in its
// own memory. Importers read that table (process_vm_readv) and fetch its descriptors (pidfd_getfd) on the IPC cache
// thread. The thread enters each mapping into a table in device memory, one table per peer process. Until then kernels
// find no entry and fall back. Freed registrations are removed from the table at once. Their mappings are closed when
// that cannot block any of our kernels; until then the memory stays allocated.
//
// Lives as long as the process. Thread-safe, also during a capture.
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
  size_t num_retired = 0;  // dropped by their owners, but still mapped
};

// A peer process whose registrations are imported.
struct RegistrationOwner {
  const cuda::RegistrationEntry* table;  // in device memory: the peer's mapped registrations
};

class Registrations {
 public:
  // Serves tensors and kernels of this device. `incarnation` is that of the device's arena. `launches` must outlive the
  // object.
  static Result<std::unique_ptr<Registrations>> create(int device, uint64_t incarnation, LaunchLedger& launches);
  ~Registrations();

  // Returns where a tensor of this device is, or registration 0 if peers cannot map it, which is logged once. Takes
  // microseconds, but up to a millisecond for the first tensor of a registration.
  cuda::IpcLocation locate(const void* data, size_t num_bytes);

  // A rank that only writes its peers' tensors, such as a broadcast's root, must call this with the tensor that it
  // sends. It publishes nothing, so only this tells the cache thread to look for the peers' tensors. A new tensor here
  // suggests new ones there, which are mapped within milliseconds; others within a tenth of a second. Takes a
  // microsecond.
  void expect_peers(const void* data, size_t num_bytes);

  // Maps what the peer publishes in that export table from now on, as long as the peer lives. Several callers share one
  // mapping. Keep the result as long as kernels use the table. A null process means a rank of this process, whose
  // tensors are not imported.
  std::shared_ptr<const RegistrationOwner> follow(ExportTableLocation export_table,
                                                  std::shared_ptr<const PeerProcess> process);

  // Returns the host's view of a peer's mapped registration, or an empty span if it is not mapped (yet, or any more).
  // The peer keeps the memory as long as it keeps a tensor in it.
  std::span<std::byte> find(const RegistrationOwner& owner, uint32_t number) const;
  // Waits until everything that the peer has published so far is mapped. Fails with the reason if this registration is
  // not mapped, and after two seconds: the driver may wait for a busy GPU.
  Status await(const RegistrationOwner& owner, uint32_t number);

  // The address of the export table in this process, to be sent to peers.
  uint64_t export_table_address() const noexcept;

  RegistrationCounts counts() const;

 private:
  struct Parts;
  explicit Registrations(std::unique_ptr<Parts> parts) noexcept;

  std::unique_ptr<Parts> parts_;
};

}  // namespace axon::ipc
