// Moves 8 bytes at a time between a tensor of any alignment and LL packets, and waits for packets.
#pragma once

#include "kernels/signal.cuh"

namespace axon::kernels::ll {

struct alignas(8) Payload {
  uint32_t low;
  uint32_t high;
};

inline constexpr size_t kPayloadBytes = sizeof(Payload);

__device__ __forceinline__ bool is_aligned(const std::byte* address, size_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

// Loads the first or last bytes of a tensor, or all bytes of an unaligned one, in the largest elements that fit.
template <typename Element>
__device__ __forceinline__ Payload load_elements(const std::byte* address, size_t num_valid) {
  union {
    Payload payload;
    Element elements[kPayloadBytes / sizeof(Element)];
  } both{};
#pragma unroll
  for (int k = 0; k < static_cast<int>(kPayloadBytes / sizeof(Element)); ++k) {
    if (k * sizeof(Element) < num_valid) both.elements[k] = reinterpret_cast<const Element*>(address)[k];
  }
  return both.payload;
}

template <typename Element>
__device__ __forceinline__ void store_elements(std::byte* address, Payload payload, size_t num_valid) {
  union {
    Payload payload;
    Element elements[kPayloadBytes / sizeof(Element)];
  } both{payload};
#pragma unroll
  for (int k = 0; k < static_cast<int>(kPayloadBytes / sizeof(Element)); ++k) {
    if (k * sizeof(Element) < num_valid) reinterpret_cast<Element*>(address)[k] = both.elements[k];
  }
}

__device__ __noinline__ inline Payload load_unaligned(const std::byte* address, size_t num_valid) {
  if (is_aligned(address, 4) && num_valid % 4 == 0) return load_elements<uint32_t>(address, num_valid);
  if (is_aligned(address, 2) && num_valid % 2 == 0) return load_elements<uint16_t>(address, num_valid);
  return load_elements<uint8_t>(address, num_valid);
}

__device__ __noinline__ inline void store_unaligned(std::byte* address, Payload payload, size_t num_valid) {
  if (is_aligned(address, 4) && num_valid % 4 == 0) return store_elements<uint32_t>(address, payload, num_valid);
  if (is_aligned(address, 2) && num_valid % 2 == 0) return store_elements<uint16_t>(address, payload, num_valid);
  store_elements<uint8_t>(address, payload, num_valid);
}

// A run of bytes divided into payloads. Missing bytes of a short last payload read as 0 and are not written. Whether
// all payloads are whole and aligned is decided once, rather than for each packet.
template <typename Byte>
class PayloadSpan {
 public:
  __device__ __forceinline__ PayloadSpan(Byte* data, size_t num_bytes)
      : data_(data),
        num_bytes_(num_bytes),
        is_aligned_8_(is_aligned(data, kPayloadBytes) && num_bytes % kPayloadBytes == 0) {}

  __device__ __forceinline__ uint32_t count() const {
    return static_cast<uint32_t>((num_bytes_ + kPayloadBytes - 1) / kPayloadBytes);
  }

  __device__ __forceinline__ Payload load(uint32_t index) const {
    const Byte* address = data_ + index * kPayloadBytes;
    return is_aligned_8_ ? *reinterpret_cast<const Payload*>(address) : load_unaligned(address, valid_bytes(index));
  }

  __device__ __forceinline__ void store(uint32_t index, Payload payload) const {
    Byte* address = data_ + index * kPayloadBytes;
    if (is_aligned_8_) {
      *reinterpret_cast<Payload*>(address) = payload;
    } else {
      store_unaligned(address, payload, valid_bytes(index));
    }
  }

 private:
  __device__ __forceinline__ size_t valid_bytes(uint32_t index) const {
    return min(num_bytes_ - index * kPayloadBytes, kPayloadBytes);
  }

  Byte* data_;
  size_t num_bytes_;
  bool is_aligned_8_;
};

using InputSpan = PayloadSpan<const std::byte>;
using OutputSpan = PayloadSpan<std::byte>;

__device__ __forceinline__ cuda::LlPacket packet_of(Payload payload, uint32_t epoch) {
  return {payload.low, epoch, payload.high, epoch};
}

// Returns whether both halves have arrived.
__device__ __forceinline__ bool is_of(const cuda::LlPacket& packet, uint32_t epoch) {
  return packet.low_epoch == epoch && packet.high_epoch == epoch;
}

// One epoch of a team, as seen by a thread.
struct EpochContext {
  const cuda::DeviceTeam& team;
  const cuda::DeviceDescriptor& ours;
  uint32_t epoch;
  uint64_t region_begin;  // in a slice

  __device__ __forceinline__ EpochContext(const cuda::DeviceTeam& team, const cuda::DeviceDescriptor& ours,
                                          uint32_t epoch)
      : team(team),
        ours(ours),
        epoch(epoch),
        region_begin(team.layout.packets + (epoch & 1) * (team.layout.region_packets * sizeof(cuda::LlPacket))) {}

  // Returns the region that `owner` polls in this epoch. It begins with the descriptors.
  __device__ __forceinline__ cuda::LlPacket* descriptors(int owner) const {
    return reinterpret_cast<cuda::LlPacket*>(team.slices[owner] + region_begin);
  }
  // Returns the packets following the descriptors.
  __device__ __forceinline__ cuda::LlPacket* slots(int owner) const { return descriptors(owner) + team.num_ranks; }

  // Stores to slot `index` of every peer, starting with the next rank, so that not all ranks start with the same peer.
  __device__ __forceinline__ void send_to_peers(uint32_t index, Payload payload) const {
    const cuda::LlPacket packet = packet_of(payload, epoch);
    int peer = team.rank;
    for (int step = 1; step < team.num_ranks; ++step) {
      if (++peer == team.num_ranks) peer = 0;
      store_packet(slots(peer) + index, packet);
    }
  }
};

// Waits for kCount packets at once, with all their loads in flight together. A null source counts as arrived.
template <int kCount>
struct Receipt {
  const cuda::LlPacket* sources[kCount];
  Payload payloads[kCount];
  uint32_t arrived = 0;  // one bit per packet, as of the last poll

  // rank_of(k) returns the rank that sends packet k.
  template <typename RankOf>
  __device__ __forceinline__ cuda::FaultCode await_all(const EpochContext& context, RankOf rank_of,
                                                       uint64_t grace_ns = SpinWait::kGraceForData) {
    SpinWait spin_wait(context.team, grace_ns);
    const auto missing_rank = [&] { return rank_of(missing()); };
    for (;;) {
      poll(context.epoch);
      if (arrived == kAll) return cuda::FaultCode::kNone;
      if (const cuda::FaultCode fault = spin_wait.after_poll(missing_rank); fault != cuda::FaultCode::kNone)
        return fault;
    }
  }

  // Waits for packets that all come from one rank.
  __device__ __forceinline__ cuda::FaultCode await(const EpochContext& context, int rank,
                                                   uint64_t grace_ns = SpinWait::kGraceForData) {
    return await_all(context, [rank](int) { return rank; }, grace_ns);
  }

  // After a fault, returns the first packet that had not arrived.
  __device__ __forceinline__ int missing() const { return __ffs(static_cast<int>(~arrived)) - 1; }

 private:
  static constexpr uint32_t kAll = (1u << kCount) - 1;

  __device__ __forceinline__ void poll(uint32_t epoch) {
    cuda::LlPacket packets[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      packets[k] = packet_of({}, epoch);
      if (sources[k] != nullptr) packets[k] = load_packet(sources[k]);
    }
    arrived = 0;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      payloads[k] = Payload{packets[k].low, packets[k].high};
      if (is_of(packets[k], epoch)) arrived |= 1u << k;
    }
  }
};

}  // namespace axon::kernels::ll
