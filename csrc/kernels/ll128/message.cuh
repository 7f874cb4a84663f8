// A message in user memory, of any alignment and size, as a run of chunk payloads.
#pragma once

#include "kernels/ll128/warp_chunk.cuh"

namespace axon::kernels::ll128 {

__device__ __forceinline__ void store_bytes(std::byte* address, uint64_t value, size_t num_valid) {
  if (num_valid == 8 && ll::is_aligned(address, 8)) {
    *reinterpret_cast<uint64_t*>(address) = value;
  } else {
    ll::store_unaligned(address, {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)}, num_valid);
  }
}

// Loads less than a vector; the rest reads as 0.
__device__ __forceinline__ Vector16 load_partial_vector(const std::byte* address, size_t num_valid) {
  ll::Payload halves[2]{ll::load_unaligned(address, min(num_valid, size_t{8})), {}};
  if (num_valid > 8) halves[1] = ll::load_unaligned(address + 8, num_valid - 8);
  return *reinterpret_cast<const Vector16*>(halves);
}

__device__ __forceinline__ void store_partial_vector(std::byte* data, size_t num_bytes, uint32_t index,
                                                     const Vector16& vector) {
  const size_t offset = index * sizeof(Vector16);
  if (offset < num_bytes) store_bytes(data + offset, vector.low, min(num_bytes - offset, size_t{8}));
  if (offset + 8 < num_bytes) store_bytes(data + offset + 8, vector.high, min(num_bytes - offset - 8, size_t{8}));
}

// Returns the 16 bytes that begin `shift` bytes into `a`.
__device__ __forceinline__ Vector16 shifted(Vector16 a, Vector16 b, uint32_t shift) {
  if (shift >= 8) a = {a.high, b.low}, b.low = b.high;
  const uint32_t bits = shift % 8 * 8;
  const uint32_t rest = 63 - bits;  // shift by 1 first, since a shift by 64 is undefined
  return {a.low >> bits | a.high << 1 << rest, a.high >> bits | b.low << 1 << rest};
}

// Stores to a chunk that is partial or unaligned.
__device__ __noinline__ inline void store_partial_share(std::byte* data, size_t num_bytes, uint32_t chunk,
                                                        Share share) {
  const uint32_t begin = chunk * kChunkVectors;
  store_partial_vector(data, num_bytes, begin + Share::first_vector(), share.first);
  if (!holds_flag()) store_partial_vector(data, num_bytes, begin + Share::second_vector(), share.second);
}

__device__ __forceinline__ uint32_t count_vectors(size_t num_bytes) {
  return static_cast<uint32_t>((num_bytes + sizeof(Vector16) - 1) / sizeof(Vector16));
}

__device__ __forceinline__ uint32_t count_chunks(size_t num_bytes) {
  return static_cast<uint32_t>((num_bytes + cuda::kWarpChunkPayloadBytes - 1) / cuda::kWarpChunkPayloadBytes);
}

// A message to be sent. It is read in aligned vectors that contain at least one byte of it. Their other bytes are
// dropped, either here or by the receiver, which ignores bytes beyond the end. Reads beyond the last vector return the
// last vector: unconditional loads stay in flight together.
class InputMessage {
 public:
  __device__ __forceinline__ InputMessage(const std::byte* data, size_t num_bytes)
      : shift_(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(data) % sizeof(Vector16))),
        num_chunks_(count_chunks(num_bytes)),
        last_(count_vectors(num_bytes + shift_) - 1),
        vectors_(reinterpret_cast<const Vector16*>(data - shift_)) {}

  __device__ __forceinline__ uint32_t num_chunks() const { return num_chunks_; }
  __device__ __forceinline__ bool is_aligned() const { return shift_ == 0; }

  __device__ __forceinline__ Share load_aligned(uint32_t chunk) const {
    const uint32_t begin = chunk * kChunkVectors;
    return {vector(begin + Share::first_vector()), vector(begin + Share::second_vector())};
  }

  __device__ __forceinline__ Share load_shifted(uint32_t chunk) const {
    const uint32_t first = chunk * kChunkVectors + Share::first_vector();
    const uint32_t second = chunk * kChunkVectors + Share::second_vector();
    return {shifted(vector(first), vector(first + 1), shift_), shifted(vector(second), vector(second + 1), shift_)};
  }

 private:
  __device__ __forceinline__ Vector16 vector(uint32_t index) const { return vectors_[min(index, last_)]; }

  uint32_t shift_;  // offset of the data in the first vector
  uint32_t num_chunks_;
  uint32_t last_;
  const Vector16* vectors_;
};

// A message to be received. Nothing is written beyond its end.
class OutputMessage {
 public:
  __device__ __forceinline__ OutputMessage(std::byte* data, size_t num_bytes)
      : data_(data),
        num_bytes_(num_bytes),
        num_whole_chunks_(ll::is_aligned(data, sizeof(Vector16))
                              ? static_cast<uint32_t>(num_bytes / cuda::kWarpChunkPayloadBytes)
                              : 0) {}

  __device__ __forceinline__ uint32_t num_chunks() const { return count_chunks(num_bytes_); }
  // Returns whether the chunk is whole and aligned.
  __device__ __forceinline__ bool is_whole(uint32_t chunk) const { return chunk < num_whole_chunks_; }

  __device__ __forceinline__ void store(uint32_t chunk, const Share& share) const {
    if (!is_whole(chunk)) return store_partial_share(data_, num_bytes_, chunk, share);
    Vector16* vectors = reinterpret_cast<Vector16*>(data_) + size_t{chunk} * kChunkVectors;
    vectors[Share::first_vector()] = share.first;
    if (!holds_flag()) vectors[Share::second_vector()] = share.second;
  }

 private:
  std::byte* data_;
  size_t num_bytes_;
  uint32_t num_whole_chunks_;
};

// The chunks of a message that one of `num_channels` warps moves: channel, channel + num_channels, …, in batches of
// kChunks.
template <uint32_t kChunks>
class Stride {
 public:
  __device__ __forceinline__ Stride(uint32_t num_chunks, uint32_t num_channels, uint32_t channel)
      : num_channels_(num_channels),
        next_(channel),
        num_left_(channel < num_chunks ? (num_chunks - channel + num_channels - 1) / num_channels : 0) {}

  __device__ __forceinline__ bool has_more() const { return num_left_ != 0; }
  // The size of this batch, and the number of its k-th chunk.
  __device__ __forceinline__ uint32_t batch_size() const { return min(kChunks, num_left_); }
  __device__ __forceinline__ uint32_t chunk(uint32_t k) const { return next_ + k * num_channels_; }
  __device__ __forceinline__ void advance() { *this = batches_on(1); }
  // Returns the stride as it will be after that many batches.
  __device__ __forceinline__ Stride batches_on(uint32_t num_batches) const {
    Stride later(*this);
    later.next_ += num_batches * kChunks * num_channels_;
    later.num_left_ -= min(num_batches * kChunks, num_left_);
    return later;
  }

 private:
  uint32_t num_channels_;
  uint32_t next_;
  uint32_t num_left_;
};

// Moves one batch between a message and registers.
template <uint32_t kChunks>
__device__ __forceinline__ void load(const InputMessage& message, const Stride<kChunks>& stride,
                                     Share (&shares)[kChunks]) {
  if (!stride.has_more()) return;
  if (message.is_aligned()) {
#pragma unroll
    for (uint32_t k = 0; k < kChunks; ++k) shares[k] = message.load_aligned(stride.chunk(k));
  } else {
#pragma unroll
    for (uint32_t k = 0; k < kChunks; ++k) shares[k] = message.load_shifted(stride.chunk(k));
  }
}

template <uint32_t kChunks>
__device__ __forceinline__ void store(const OutputMessage& message, const Stride<kChunks>& stride,
                                      const Share (&shares)[kChunks]) {
#pragma unroll
  for (uint32_t k = 0; k < kChunks; ++k) {
    if (k < stride.batch_size()) message.store(stride.chunk(k), shares[k]);
  }
}

}  // namespace axon::kernels::ll128
