// A layer's own objects as rendezvous of payloads, told apart from those of the transport below it, whose addresses are
// that one's affair: UCX's have any alignment. By a bit that no address of user space has, another one a layer.
//
//   using Handle = Tagged<Arrival, 62>;
//   … {.rendezvous = Handle::of(arrival)} …        Arrival* arrival = Handle::find(rendezvous);   // null: the
//   network's
#pragma once

#include <cstdint>

namespace axon::transport {

template <typename T, int kBit>
struct Tagged {
  static_assert(kBit >= 60 && kBit <= 62);  // below: addresses, and what CPUs keep beside them

  static void* of(T& object) noexcept { return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(&object) | kTag); }
  static T* find(void* rendezvous) noexcept {
    const auto address = reinterpret_cast<uintptr_t>(rendezvous);
    return (address & kTag) != 0 ? reinterpret_cast<T*>(address & ~kTag) : nullptr;
  }

 private:
  static constexpr uintptr_t kTag = uintptr_t{1} << kBit;
};

}  // namespace axon::transport
