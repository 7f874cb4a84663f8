// Moving 8 bytes at a time between a tensor of any alignment and packets, and waiting for packets.
#pragma once

#include "device/signal.cuh"

namespace axon::device {

struct alignas(8) Payload {
  uint32_t low;
  uint32_t high;
};

inline constexpr size_t kPayloadBytes = sizeof(Payload);

__device__ __forceinline__ bool is_aligned(const std::byte* address, size_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

// The first or last bytes of a tensor, and all of one that is not 8-byte aligned: in the largest pieces that fit.
template <typename Piece>
__device__ __forceinline__ Payload load_pieces(const std::byte* address, size_t num_valid) {
  union {
    Payload payload;
    Piece pieces[kPayloadBytes / sizeof(Piece)];
  } both{};
#pragma unroll
  for (int k = 0; k < static_cast<int>(kPayloadBytes / sizeof(Piece)); ++k) {
    if (k * sizeof(Piece) < num_valid) both.pieces[k] = reinterpret_cast<const Piece*>(address)[k];
  }
  return both.payload;
}

template <typename Piece>
__device__ __forceinline__ void store_pieces(std::byte* address, Payload payload, size_t num_valid) {
  union {
    Payload payload;
    Piece pieces[kPayloadBytes / sizeof(Piece)];
  } both{payload};
#pragma unroll
  for (int k = 0; k < static_cast<int>(kPayloadBytes / sizeof(Piece)); ++k) {
    if (k * sizeof(Piece) < num_valid) reinterpret_cast<Piece*>(address)[k] = both.pieces[k];
  }
}

__device__ __noinline__ inline Payload load_unaligned(const std::byte* address, size_t num_valid) {
  if (is_aligned(address, 4) && num_valid % 4 == 0) return load_pieces<uint32_t>(address, num_valid);
  if (is_aligned(address, 2) && num_valid % 2 == 0) return load_pieces<uint16_t>(address, num_valid);
  return load_pieces<uint8_t>(address, num_valid);
}

__device__ __noinline__ inline void store_unaligned(std::byte* address, Payload payload, size_t num_valid) {
  if (is_aligned(address, 4) && num_valid % 4 == 0) return store_pieces<uint32_t>(address, payload, num_valid);
  if (is_aligned(address, 2) && num_valid % 2 == 0) return store_pieces<uint16_t>(address, payload, num_valid);
  store_pieces<uint8_t>(address, payload, num_valid);
}

// Packet `index` of a run of `num_bytes` at `data`; bytes past its end read as 0 and are not written.
__device__ __forceinline__ Payload load_payload(const std::byte* data, size_t num_bytes, uint32_t index) {
  const std::byte* address = data + index * kPayloadBytes;
  const size_t num_valid = num_bytes - index * kPayloadBytes;
  if (num_valid >= kPayloadBytes && is_aligned(address, kPayloadBytes)) {
    return *reinterpret_cast<const Payload*>(address);
  }
  return load_unaligned(address, min(num_valid, kPayloadBytes));
}

__device__ __forceinline__ void store_payload(std::byte* data, size_t num_bytes, uint32_t index, Payload payload) {
  std::byte* address = data + index * kPayloadBytes;
  const size_t num_valid = num_bytes - index * kPayloadBytes;
  if (num_valid >= kPayloadBytes && is_aligned(address, kPayloadBytes)) {
    *reinterpret_cast<Payload*>(address) = payload;
  } else {
    store_unaligned(address, payload, min(num_valid, kPayloadBytes));
  }
}

// One epoch of a team, as a thread sees it.
struct Turn {
  const DeviceTeam& team;
  uint32_t epoch;

  // The region that `owner` polls in this epoch, behind its descriptors.
  __device__ __forceinline__ Packet* region(int owner) const { return descriptors(owner) + team.num_ranks; }
  __device__ __forceinline__ Packet* descriptors(int owner) const {
    return team.packets[owner] + size_t{epoch & 1} * team.region_packets;
  }

  __device__ __forceinline__ void send(Packet* slot, Payload payload) const {
    store_packet(slot, Packet{payload.low, epoch, payload.high, epoch});
  }

  // To `offset` in every peer's region, starting with the next rank so that no peer is everybody's first.
  __device__ __forceinline__ void send_to_peers(size_t offset, Payload payload) const {
#pragma unroll 4
    for (int step = 1; step < team.num_ranks; ++step) {
      const int next = team.rank + step;
      send(region(next < team.num_ranks ? next : next - team.num_ranks) + offset, payload);
    }
  }
};

// kCount packets to wait for at once, all their loads in flight together; a null source is ready as it stands.
template <int kCount>
struct Receipt {
  const Packet* sources[kCount];
  Payload payloads[kCount];
  int missing = 0;  // after a fault, the first that had not come

  __device__ __forceinline__ FaultCode await(const Turn& turn) {
    Patience patience(turn.team);
    for (;;) {
      if (poll(turn.epoch)) return FaultCode::kNone;
      if (const FaultCode fault = patience.after_poll(); fault != FaultCode::kNone) return fault;
    }
  }

 private:
  __device__ __forceinline__ bool poll(uint32_t epoch) {
    Packet packets[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      packets[k] = Packet{payloads[k].low, epoch, payloads[k].high, epoch};
      if (sources[k] != nullptr) packets[k] = load_packet(sources[k]);
    }
    bool all_here = true;
#pragma unroll
    for (int k = kCount - 1; k >= 0; --k) {
      const bool is_here = packets[k].low_epoch == epoch && packets[k].high_epoch == epoch;
      payloads[k] = Payload{packets[k].low, packets[k].high};
      if (!is_here) missing = k;
      all_here &= is_here;
    }
    return all_here;
  }
};

}  // namespace axon::device
