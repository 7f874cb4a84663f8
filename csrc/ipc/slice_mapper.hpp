// How a rank describes its slice to its peers, and maps the arenas of theirs. Implemented by Arena; tests without a GPU
// have others.
#pragma once

#include <memory>

#include "base/status.hpp"
#include "ipc/arena_view.hpp"
#include "ipc/device_address.hpp"

namespace axon::ipc {

class SliceMapper {
 public:
  virtual DeviceAddress address_of(ArenaSlice slice) const = 0;
  // Returns a peer's arena, of this process or another, as kernels of this device see it. Keep the view as long as
  // kernels may use it.
  virtual Result<std::shared_ptr<const ArenaView>> view_of(const DeviceAddress& address) = 0;

 protected:
  ~SliceMapper() = default;
};

}  // namespace axon::ipc
