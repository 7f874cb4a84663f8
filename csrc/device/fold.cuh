// Reductions over bits as they travel: pieces of 8 or 16 bytes, accumulated in rank order 0 … n−1 and rounded once, so
// that every rank, run, algorithm and protocol gives the same bits, and the same as collectives/arithmetic on the host.
//
// An *arithmetic* is what a kernel is compiled for: Sums for the types that training lives on, AnyReduction with the
// reduction chosen at run time for all others, Bits where the element's width does not matter.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "device/ptx.cuh"

namespace axon::device {

// What to do with the elements, of any type.
struct FoldPlan {
  Reduction reduction;
  int32_t num_ranks;     // kAverage divides by it
  double premul_factor;  // of kPremulSum
};

// Half types are widened to float.
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

// Integers wrap around: their sums and products are taken in an unsigned type.
template <typename T>
__device__ __forceinline__ T wrapping_sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  return a + b;
}

template <typename T>
__device__ __forceinline__ T wrapping_product(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  return a * b;
}

// Rounded before it is added to anything: never fused.
__device__ __forceinline__ float scaled(float value, double factor) {
  return __fmul_rn(value, static_cast<float>(factor));
}
__device__ __forceinline__ double scaled(double value, double factor) {
  return __dmul_rn(value, factor);
}

// kSum and kAverage.
template <typename T>
struct Sums {
  using Element = T;
  using Compute = typename ElementTraits<T>::Compute;

  __device__ __forceinline__ static Compute begin(const FoldPlan&, T value) { return ElementTraits<T>::widen(value); }
  __device__ __forceinline__ static Compute combine(const FoldPlan&, Compute a, Compute b) {
    return wrapping_sum(a, b);
  }
  __device__ __forceinline__ static Compute average(const FoldPlan& plan, Compute total) {
    return total / static_cast<Compute>(plan.num_ranks);
  }
  __device__ __forceinline__ static T finish(Compute total) { return ElementTraits<T>::round(total); }
};

template <typename T>
struct AnyReduction {
  using Element = T;
  using Compute = typename ElementTraits<T>::Compute;

  __device__ __forceinline__ static Compute begin(const FoldPlan& plan, T value) {
    const Compute wide = ElementTraits<T>::widen(value);
    if constexpr (std::is_floating_point_v<Compute>) {
      if (plan.reduction == Reduction::kPremulSum) return scaled(wide, plan.premul_factor);
    }
    return wide;
  }

  // A NaN on either side wins, as in torch.minimum and torch.maximum.
  __device__ __forceinline__ static Compute combine(const FoldPlan& plan, Compute a, Compute b) {
    switch (plan.reduction) {
      case Reduction::kProduct:
        return wrapping_product(a, b);
      case Reduction::kMin:
        return a < b || a != a ? a : b;
      case Reduction::kMax:
        return a > b || a != a ? a : b;
      default:
        return wrapping_sum(a, b);
    }
  }

  __device__ __forceinline__ static Compute average(const FoldPlan& plan, Compute total) {
    return Sums<T>::average(plan, total);
  }
  __device__ __forceinline__ static T finish(Compute total) { return Sums<T>::finish(total); }
};

// Of whole words: kBitAnd, kBitOr, kBitXor. Of bytes 0 and 1 these are all the reductions of bool.
struct Bits {
  using Element = uint64_t;
  using Compute = uint64_t;

  __device__ __forceinline__ static uint64_t begin(const FoldPlan&, uint64_t word) { return word; }
  __device__ __forceinline__ static uint64_t combine(const FoldPlan& plan, uint64_t a, uint64_t b) {
    switch (plan.reduction) {
      case Reduction::kBitAnd:
        return a & b;
      case Reduction::kBitOr:
        return a | b;
      default:
        return a ^ b;
    }
  }
  __device__ __forceinline__ static uint64_t average(const FoldPlan&, uint64_t word) { return word; }
  __device__ __forceinline__ static uint64_t finish(uint64_t word) { return word; }
};

// What only one rank has, passed on as it is.
struct Relay {
  using Element = uint64_t;
  using Compute = uint64_t;

  __device__ __forceinline__ static uint64_t begin(const FoldPlan&, uint64_t word) { return word; }
  __device__ __forceinline__ static uint64_t combine(const FoldPlan&, uint64_t a, uint64_t) { return a; }
  __device__ __forceinline__ static uint64_t average(const FoldPlan&, uint64_t word) { return word; }
  __device__ __forceinline__ static uint64_t finish(uint64_t word) { return word; }
};

// The elements of one piece, reduced over the ranks in the order they are added.
template <typename Arithmetic, typename Piece>
class Accumulator {
 public:
  __device__ __forceinline__ void set(const FoldPlan& plan, Piece first) {
    const Elements elements{first};
#pragma unroll
    for (int k = 0; k < kCount; ++k) totals_[k] = Arithmetic::begin(plan, elements.values[k]);
  }

  __device__ __forceinline__ void add(const FoldPlan& plan, Piece next) {
    const Elements elements{next};
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      totals_[k] = Arithmetic::combine(plan, totals_[k], Arithmetic::begin(plan, elements.values[k]));
    }
  }

  // The total, used up. One branch for all elements: a division each in line would be most of a kernel's code.
  __device__ __forceinline__ Piece result(const FoldPlan& plan) {
    if (plan.reduction == Reduction::kAverage) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) totals_[k] = Arithmetic::average(plan, totals_[k]);
    }
    Elements elements{Piece{}};
#pragma unroll
    for (int k = 0; k < kCount; ++k) elements.values[k] = Arithmetic::finish(totals_[k]);
    return elements.piece;
  }

 private:
  static constexpr int kCount = sizeof(Piece) / sizeof(typename Arithmetic::Element);
  union Elements {
    Piece piece;
    typename Arithmetic::Element values[kCount];
  };

  typename Arithmetic::Compute totals_[kCount];
};

}  // namespace axon::device
