// The interface of calls that kernels start, by writing their ids into a trigger ring (engine/replays.hpp).
#pragma once

#include <cstdint>

namespace axon::engine {

// Progress owner only, but for the id.
class Triggered {
 public:
  virtual uint32_t trigger_id() const noexcept = 0;
  // A kernel has written the id.
  virtual void trigger() noexcept = 0;
  // The engine has shut down: the device must not wait.
  virtual void fail() noexcept = 0;

 protected:
  ~Triggered() = default;
};

}  // namespace axon::engine
