// Shows the doctor how far the kernels of groups are, also those that CUDA graphs launch, on the status page.
//
//   AXON_TRY(ProgressReader::instance().add({…}));        // once kernels can run
//   ProgressReader::instance().remove(communicator);      // before the slice is detached
//
// Kernels take no part: the counts and descriptors by which ranks meet are in the rank's slice anyway. A thread of its
// own looks ten times a second whether the doctor has asked for them, and then lets a copy engine fetch them. It is
// another thread than the IPC cache's, since the driver may hold a copy back until kernels end that wait for a peer.
// docs/adr/0068-copy-the-progress-of-gpus-for-the-doctor.md.
#pragma once

#include <array>
#include <list>
#include <mutex>
#include <vector>

#include "cuda/device_types.hpp"
#include "engine/communicator.hpp"
#include "gpu_comm/local_team.hpp"
#include "ipc/arena.hpp"
#include "ipc/registrations/cache_thread.hpp"

namespace axon::gpu_comm {

// The part of a rank's slice that is copied.
struct TeamCopy {
  cuda::TeamState state{};
  // The descriptors that the ranks have sent to this one, by local index, in each of the two regions.
  std::array<std::array<cuda::LlPacket, cuda::kMaxTeamRanks>, 2> descriptors{};
};

// Returns the ranks of the team by local index. A rank's own count may be lower than what it has told its peers.
std::vector<engine::DeviceProgress> progress_in(const TeamCopy& copy, const LocalTeam& team);

struct ProgressSource {
  engine::Communicator* communicator;
  ipc::Arena* arena;
  LocalTeam local;
  cuda::DeviceTeam team;
};

// Thread-safe.
class ProgressReader {
 public:
  static ProgressReader& instance();

  // The communicator and the slice must remain until remove().
  Status add(ProgressSource source);
  // Does nothing if the communicator was not added.
  void remove(const engine::Communicator& communicator) noexcept;

 private:
  struct Entry {
    ProgressSource source;
    uint64_t number;  // of no other entry: a later group may have the same addresses
    uint32_t num_answered;
  };

  ipc::Liveliness tend();
  void answer(const Entry& entry);
  bool has(const Entry& entry) const noexcept;

  std::mutex mutex_;  // guards the members below
  std::list<Entry> entries_;
  uint64_t num_added_ = 0;
  bool has_task_ = false;
};

}  // namespace axon::gpu_comm
