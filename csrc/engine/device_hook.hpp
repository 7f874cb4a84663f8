// Interface to the part of a group that works on a GPU, outside the engine. If either part fails, the whole group
// fails.
//
//   communicator.set_device_hook(&hook);      // the engine calls it from now on
//   communicator.set_device_hook(nullptr);    // the engine does not call it after this returns
//
// The caller owns the hook. The engine calls it with the progress token held: it must neither block nor call back.
#pragma once

#include "base/status.hpp"

namespace axon::engine {

// Appended to the error of a send or receive whose message may have gone to the GPU side, or from it.
inline constexpr const char* kMeetingUnderTags = " CPU and CUDA tensors meet under tags other than 0.";

class DeviceHook {
 public:
  // The group has failed or was aborted: every wait for a peer must end. May be called more than once.
  virtual void on_failed(const Status& reason) noexcept = 0;

  // This rank is gone: waits for it must end, unless what it sent before has arrived.
  virtual void on_rank_lost(int rank, const Status& reason) noexcept = 0;

  // Returns the device side's fault; called periodically. Anything but ok ends the group's collectives.
  virtual Status fault() noexcept = 0;

 protected:
  ~DeviceHook() = default;
};

}  // namespace axon::engine
