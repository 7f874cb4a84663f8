// Reads the status page of any process that this one may inspect (engine/status_layout.hpp). The other process is
// neither asked nor stopped, and may be stopped already.
//
//   Result<ProcessStatus> status = read_status(descriptor);   // of /proc/PID/fd/N, opened for reading
//   for (const GroupSnapshot& group : status.value().groups) print(group.name);
//
// Owns nothing; any thread. Lengths are clamped, since another program may have made the page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "engine/call_record.hpp"
#include "engine/status_layout.hpp"
#include "engine/status_page.hpp"

namespace axon::engine {

struct CallSnapshot {
  std::string text;       // "all_reduce #5 (float32[4, 256], SUM)"
  std::string operation;  // "all_reduce", "send" or "receive"
  CallState state{};
  uint32_t sequence = 0;     // of collectives; 0 for others
  int peer = -1;             // of messages
  bool is_replay = false;    // a CUDA graph holds it
  uint32_t waiter = 0;       // the waiting thread's id in the kernel, or 0
  int64_t called_at_ns = 0;  // by the monotonic clock
  std::string call_site;     // empty: the process does not record it
};

struct GroupSnapshot {
  std::string name;
  uint64_t identity = 0;  // equal on all ranks of the group, and on no others
  int rank = 0;
  int size = 0;
  int num_on_host = 0;
  std::string failure;                 // empty: it has not failed
  std::optional<CallSnapshot> latest;  // the collective that was entered last
  std::optional<CallSnapshot> replay;  // of a CUDA graph: the last one of which a record is left
  std::vector<CallSnapshot> running;   // without `latest`, the oldest first
  uint32_t num_unlisted = 0;           // running calls that are not listed
  uint32_t num_launched = 0;           // collectives that the GPU was given
  std::optional<CallSnapshot> launched;
  std::optional<CallSnapshot> message;
  std::optional<CallSnapshot> captured;
  std::vector<DeviceProgress> progress;  // of the ranks on its host; empty: it has no kernels, or is writing it
  int64_t progress_read_at_ns = 0;       // 0: no reader has asked for it
  uint32_t num_torn = 0;  // calls that the process was writing at every attempt, for example because it is stopped
};

struct ProcessStatus {
  int32_t pid = 0;  // in the process's own pid namespace
  std::vector<GroupSnapshot> groups;
  uint32_t num_left_out = 0;  // groups that the page has no room for
};

// Asks the process for the progress of its GPUs (ProgressReader), which read_status() then shows some 0.1 s later. Does
// nothing if the descriptor is not open for writing too, or is not a status page of this version.
void ask_for_progress(int descriptor) noexcept;

// Fails if the descriptor is not a status page, or is that of another version of torch_axon.
Result<ProcessStatus> read_status(int descriptor);

}  // namespace axon::engine
