// The part of a group that works outside the engine, on a GPU, and shares the group's fate.
//
// The engine calls it with the progress token held: it must neither block nor call back.
#pragma once

#include "base/status.hpp"

namespace axon::engine {

// Behind what a user is told whose message may have gone the other part's way.
inline constexpr const char* kMeetingUnderTags = " CPU and CUDA tensors meet under tags other than 0.";

class DeviceHook {
 public:
  // The group has failed or was aborted: every wait for a peer is to end. More than once, perhaps.
  virtual void on_failed(const Status& reason) noexcept = 0;

  // This rank is gone: waits for it are to end, unless what it sent before has come.
  virtual void on_rank_lost(int rank, const Status& reason) noexcept = 0;

  // What has gone wrong over there, asked every now and then; anything but ok ends the group's collectives.
  virtual Status fault() noexcept = 0;

 protected:
  ~DeviceHook() = default;
};

}  // namespace axon::engine
