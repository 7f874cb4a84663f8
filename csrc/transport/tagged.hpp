// Lets a transport layer tell its own rendezvous handles from those of the transport below it. The lower transport's
// handles may be addresses of any alignment, as UCX's are. The tag is therefore a bit that no user-space address has
// set, with a different bit for each layer.
//
//   using Handle = Tagged<Arrival, 62>;
//   … {.rendezvous = Handle::of(arrival)} …
//   Arrival* arrival = Handle::find(rendezvous);   // null: the handle belongs to the network
#pragma once

#include <cstdint>

namespace axon::transport {

template <typename T, int kBit>
struct Tagged {
  static_assert(kBit >= 60 && kBit <= 62);  // lower bits hold addresses and the metadata that CPUs keep beside them

  static void* of(T& object) noexcept { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(&object) | kTag); }
  static T* find(void* rendezvous) noexcept {
    const auto address = reinterpret_cast<uintptr_t>(rendezvous);
    return (address & kTag) != 0 ? reinterpret_cast<T*>(address & ~kTag) : nullptr;
  }

 private:
  static constexpr uintptr_t kTag = uintptr_t{1} << kBit;
};

}  // namespace axon::transport
