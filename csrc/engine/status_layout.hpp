// The layout of a process's status page: shared memory in which it shows its groups and their calls to the doctor.
//
// The doctor copies it out of a process that need not cooperate, and may be stopped. So each part has a version, which
// is odd while the part is being written. A copy is whole if the version was even before it and the same after it.
// engine/status_page.hpp writes the page, and engine/status_reader.hpp reads it.
// docs/adr/0062-show-calls-in-a-page-of-shared-memory.md.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "engine/call_record.hpp"

namespace axon::engine {

// The memory's name, by which the doctor finds it among a process's descriptors.
inline constexpr const char* kStatusPageName = "torch_axon.status";
inline constexpr uint64_t kStatusMagic = 0x737574617473'7861;  // "axstatus"
// Must be incremented with any change to this file, and with new values of the enums in it.
inline constexpr uint32_t kStatusVersion = 2;

// Values are part of the layout: append, never renumber.
enum class CallState : uint32_t {
  kNone = 0,
  kRunning = 1,
  kAwaitsDevice = 2,  // its GPU has not produced the inputs yet
  kFinished = 3,
  kFailed = 4,
  kLaunched = 5,  // handed to the GPU, which does not tell how far it is
};

// A text that is cut at its beginning if it is too long.
template <size_t kNumBytes>
struct StatusText {
  uint32_t length;
  std::array<char, kNumBytes> bytes;
};

// One call. The atomics have no pair in this process: readers are other processes.
struct CallSlot {
  std::atomic<uint32_t> version;  // guards the fields after `waiter`
  std::atomic<CallState> state;   // of the call that this version describes
  std::atomic<uint64_t> waiter;   // version << 32 | the waiting thread's id in the kernel
  int64_t called_at_ns;           // by the monotonic clock
  uint32_t sequence;
  uint32_t replay_call;
  uint32_t replay_launch;
  uint32_t tag;
  int32_t root;
  int32_t peer;
  uint8_t kind;
  uint8_t direction;
  uint8_t dtype;
  uint8_t reduction;
  uint8_t num_dimensions;
  std::array<int64_t, Shape::kMostDimensions> sizes;  // the first num_dimensions count
  StatusText<132> call_site;
};
static_assert(sizeof(CallSlot) == 256);

// Returns what the slot says, but for the call site. Of values from another process, the lengths are clamped.
CallRecord record_of(const CallSlot& slot) noexcept;

// How far the kernels of this host's ranks are, as this rank's GPU has seen them. A GPU counts the collectives that it
// enters, also those that CUDA graphs hold, alike on all ranks. What it is told with a count arrives before the call
// ends.
struct DeviceRank {
  int32_t rank;          // in the group
  uint32_t num_entered;  // collectives; it wraps. Of this rank itself: how many it has finished
  StatusText<72> call;   // the last of them; empty: not known to this rank
};
struct DeviceSlot {
  static constexpr size_t kMostRanks = 16;

  std::atomic<uint32_t> version;  // guards the rest
  uint32_t num_ranks;             // 0: the group has no kernels
  int64_t read_at_ns;             // by the monotonic clock; 0: no reader has asked for it
  std::array<DeviceRank, kMostRanks> ranks;
};

// One group. A process that no longer uses the slot has cleared `is_used`.
struct GroupSlot {
  static constexpr size_t kMostCalls = 8;

  std::atomic<uint32_t> version;  // guards the fields down to `name`
  uint32_t is_used;
  uint64_t identity;  // equal on all ranks of the group, and random
  int32_t rank;
  int32_t size;
  int32_t num_on_host;  // ranks on this rank's host, this one included
  StatusText<108> name;

  std::atomic<uint32_t> failure_version;  // guards `failure`
  StatusText<512> failure;                // empty: the group has not failed

  std::atomic<uint32_t> num_unlisted;      // running calls that have no slot
  std::atomic<uint32_t> num_launched;      // collectives that the GPU was given, without captured ones
  std::array<CallSlot, kMostCalls> calls;  // the latest collective is the one with the highest sequence
  CallSlot launched;                       // the collective that the GPU was given last
  CallSlot message;                        // the message that it was given last, or that was captured last
  CallSlot captured;                       // the collective that was captured last into a CUDA graph
  DeviceSlot device;
};

struct StatusHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t num_bytes;                  // of the whole page
  int32_t pid;                         // in the process's own pid namespace
  std::atomic<uint32_t> num_left_out;  // groups that have no slot
  std::atomic<uint32_t> num_requests;  // a reader increments it, to have the `device` of all groups written anew
};

struct StatusMemory {
  static constexpr size_t kMostGroups = 32;

  StatusHeader header;
  std::array<GroupSlot, kMostGroups> groups;
};

// Readers copy it byte by byte.
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::is_standard_layout_v<StatusMemory>);

}  // namespace axon::engine
