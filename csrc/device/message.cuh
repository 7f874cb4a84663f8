// A message in user memory, of any alignment and size, as a run of frames' payloads.
#pragma once

#include "device/frame.cuh"

namespace axon::device {

// 8 bytes or the last few; nothing is touched behind them.
__device__ __forceinline__ uint64_t load_bytes(const std::byte* address, size_t num_valid) {
  if (num_valid == 0) return 0;
  if (num_valid == 8 && is_aligned(address, 8)) return *reinterpret_cast<const uint64_t*>(address);
  const Payload payload = load_unaligned(address, num_valid);
  return uint64_t{payload.high} << 32 | payload.low;
}

__device__ __forceinline__ void store_bytes(std::byte* address, uint64_t value, size_t num_valid) {
  if (num_valid == 0) return;
  if (num_valid == 8 && is_aligned(address, 8)) {
    *reinterpret_cast<uint64_t*>(address) = value;
  } else {
    store_unaligned(address, {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)}, num_valid);
  }
}

// How many of the 8 bytes at `offset` a message has.
__device__ __forceinline__ size_t valid_bytes(size_t num_bytes, size_t offset) {
  return offset >= num_bytes ? 0 : min(num_bytes - offset, size_t{8});
}

__device__ __noinline__ inline Granule load_odd_granule(const std::byte* data, size_t num_bytes, size_t offset) {
  return {load_bytes(data + offset, valid_bytes(num_bytes, offset)),
          load_bytes(data + offset + 8, valid_bytes(num_bytes, offset + 8))};
}

__device__ __noinline__ inline void store_odd_granule(std::byte* data, size_t num_bytes, size_t offset,
                                                      Granule granule) {
  store_bytes(data + offset, granule.low, valid_bytes(num_bytes, offset));
  store_bytes(data + offset + 8, granule.high, valid_bytes(num_bytes, offset + 8));
}

// By whole warps. Bytes behind the end read as 0 and are not written.
template <typename Byte>
class Message {
 public:
  __device__ __forceinline__ Message(Byte* data, size_t num_bytes)
      : data_(data), num_bytes_(num_bytes), num_even_bytes_(is_aligned(data, 16) ? num_bytes : 0) {}

  __device__ __forceinline__ uint32_t num_frames() const {
    return static_cast<uint32_t>((num_bytes_ + kFramePayloadBytes - 1) / kFramePayloadBytes);
  }

  __device__ __forceinline__ Share load(uint32_t frame) const {
    const size_t begin = frame * kFramePayloadBytes;
    const size_t first = begin + Share::first_offset();
    const size_t second = begin + Share::second_offset();
    Share share{};
    if (begin + kFramePayloadBytes <= num_even_bytes_) {
      share.first = *reinterpret_cast<const Granule*>(data_ + first);
      if (!holds_flag()) share.second = *reinterpret_cast<const Granule*>(data_ + second);
    } else {
      share.first = load_odd_granule(data_, num_bytes_, first);
      if (!holds_flag()) share.second = load_odd_granule(data_, num_bytes_, second);
    }
    return share;
  }

  __device__ __forceinline__ void store(uint32_t frame, const Share& share) const {
    const size_t begin = frame * kFramePayloadBytes;
    const size_t first = begin + Share::first_offset();
    const size_t second = begin + Share::second_offset();
    if (begin + kFramePayloadBytes <= num_even_bytes_) {
      *reinterpret_cast<Granule*>(data_ + first) = share.first;
      if (!holds_flag()) *reinterpret_cast<Granule*>(data_ + second) = share.second;
    } else {
      store_odd_granule(data_, num_bytes_, first, share.first);
      if (!holds_flag()) store_odd_granule(data_, num_bytes_, second, share.second);
    }
  }

 private:
  Byte* data_;
  size_t num_bytes_;
  size_t num_even_bytes_;  // 0 where granules are not aligned
};

using InputMessage = Message<const std::byte>;
using OutputMessage = Message<std::byte>;

// The frames of a message that one of `num_lanes` warps moves: lane, lane + num_lanes, …; kBatch at a time.
template <uint32_t kBatch>
class Stride {
 public:
  __device__ __forceinline__ Stride(uint32_t num_frames, uint32_t num_lanes, uint32_t lane)
      : num_frames_(num_frames), num_lanes_(num_lanes), next_(lane) {}

  __device__ __forceinline__ bool has_more() const { return next_ < num_frames_; }
  // Of this batch: how many, and which is the k-th.
  __device__ __forceinline__ uint32_t batch_size() const {
    return min(kBatch, (num_frames_ - next_ + num_lanes_ - 1) / num_lanes_);
  }
  __device__ __forceinline__ uint32_t frame(uint32_t k) const { return next_ + k * num_lanes_; }
  __device__ __forceinline__ bool has(uint32_t k) const { return frame(k) < num_frames_; }
  __device__ __forceinline__ void advance() { next_ += kBatch * num_lanes_; }

 private:
  uint32_t num_frames_;
  uint32_t num_lanes_;
  uint32_t next_;
};

// One batch between a message and registers.
template <uint32_t kBatch>
__device__ __forceinline__ void load(const InputMessage& message, const Stride<kBatch>& stride,
                                     Share (&shares)[kBatch]) {
#pragma unroll
  for (uint32_t k = 0; k < kBatch; ++k) {
    if (stride.has(k)) shares[k] = message.load(stride.frame(k));
  }
}

template <uint32_t kBatch>
__device__ __forceinline__ void store(const OutputMessage& message, const Stride<kBatch>& stride,
                                      const Share (&shares)[kBatch]) {
#pragma unroll
  for (uint32_t k = 0; k < kBatch; ++k) {
    if (stride.has(k)) message.store(stride.frame(k), shares[k]);
  }
}

}  // namespace axon::device
