// Reductions of packets: elements of 2, 4 or 8 bytes, accumulated in rank order 0 … n−1 and rounded once, so that every
// rank, run and algorithm gives the same bits. Half types accumulate in float.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "device/packet.cuh"

namespace axon::device {

template <typename T>
struct ElementTraits {
  using Compute = T;
  __device__ static Compute widen(T value) { return value; }
  __device__ static T round(Compute value) { return value; }
};

template <>
struct ElementTraits<__half> {
  using Compute = float;
  __device__ static float widen(__half value) { return __half2float(value); }
  __device__ static __half round(float value) { return __float2half_rn(value); }
};

template <>
struct ElementTraits<__nv_bfloat16> {
  using Compute = float;
  __device__ static float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
  __device__ static __nv_bfloat16 round(float value) { return __float2bfloat16_rn(value); }
};

struct KeepTotal {
  template <typename T>
  __device__ static T finish(T total, int) {
    return total;
  }
};

struct Sum : KeepTotal {
  template <typename T>
  __device__ static T combine(T a, T b) {
    return a + b;
  }
};

struct Average : Sum {
  template <typename T>
  __device__ static T finish(T total, int num_ranks) {
    return total / static_cast<T>(num_ranks);
  }
};

struct Product : KeepTotal {
  template <typename T>
  __device__ static T combine(T a, T b) {
    return a * b;
  }
};

// A NaN on either side wins, as in torch.minimum and torch.maximum.
struct Min : KeepTotal {
  template <typename T>
  __device__ static T combine(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

struct Max : KeepTotal {
  template <typename T>
  __device__ static T combine(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

// The elements of one packet, summed (or whatever `Op` does) over the ranks in the order they are added.
template <typename T, typename Op>
class Accumulator {
 public:
  __device__ __forceinline__ void set(Payload first) {
    const Elements elements{first};
#pragma unroll
    for (int k = 0; k < kCount; ++k) totals_[k] = Traits::widen(elements.values[k]);
  }

  __device__ __forceinline__ void add(Payload next) {
    const Elements elements{next};
#pragma unroll
    for (int k = 0; k < kCount; ++k) totals_[k] = Op::combine(totals_[k], Traits::widen(elements.values[k]));
  }

  __device__ __forceinline__ Payload result(int num_ranks) const {
    Elements elements{Payload{}};
#pragma unroll
    for (int k = 0; k < kCount; ++k) elements.values[k] = Traits::round(Op::finish(totals_[k], num_ranks));
    return elements.payload;
  }

 private:
  using Traits = ElementTraits<T>;
  static constexpr int kCount = kPayloadBytes / sizeof(T);
  union Elements {
    Payload payload;
    T values[kCount];
  };

  typename Traits::Compute totals_[kCount];
};

}  // namespace axon::device
