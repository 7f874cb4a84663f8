// Reductions over payload bits in vectors of 8 or 16 bytes. Elements are accumulated in rank order 0 … n−1 and rounded
// once. So every rank, run, algorithm and protocol gives the same bits, which equal those of collectives/arithmetic on
// the host.
//
// A kernel is compiled for an *arithmetic*. Sums is for the types that dominate training. AnyReduction is for all
// others, with the reduction chosen at run time. Bits is used where the element's width does not matter.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/ptx.cuh"

namespace axon::kernels {

// Describes the reduction of elements of any type.
struct ReducePlan {
  Reduction reduction;
  int32_t num_ranks;     // kAverage divides by it
  double premul_factor;  // of kPremulSum
};

// The elements of a vector in the form in which they are reduced.
template <typename T, typename Vector>
struct PlainElements {
  using Compute = T;
  static constexpr int kCount = sizeof(Vector) / sizeof(T);
  union {
    Vector vector;
    T values[kCount];
  };

  __device__ __forceinline__ static PlainElements of(Vector vector) {
    PlainElements elements;
    elements.vector = vector;
    return elements;
  }
  __device__ __forceinline__ Vector round() const { return vector; }
};

// Half types are widened to float, and rounded two at a time.
template <typename T>
struct HalfPair;

template <>
struct HalfPair<__half> {
  __device__ __forceinline__ static float2 widen(uint32_t word) {
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
  }
  __device__ __forceinline__ static uint32_t round(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

template <>
struct HalfPair<__nv_bfloat16> {
  __device__ __forceinline__ static float2 widen(uint32_t word) {
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF'0000)};
  }
  __device__ __forceinline__ static uint32_t round(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
};

template <typename T, typename Vector>
struct HalfElements {
  using Compute = float;
  static constexpr int kCount = sizeof(Vector) / sizeof(T);
  float values[kCount];

  __device__ __forceinline__ static HalfElements of(Vector vector) {
    const Words words{vector};
    HalfElements elements;
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k) {
      const float2 pair = HalfPair<T>::widen(words.words[k]);
      elements.values[2 * k] = pair.x;
      elements.values[2 * k + 1] = pair.y;
    }
    return elements;
  }
  __device__ __forceinline__ Vector round() const {
    Words words{Vector{}};
#pragma unroll
    for (int k = 0; k < kCount / 2; ++k) words.words[k] = HalfPair<T>::round(values[2 * k], values[2 * k + 1]);
    return words.vector;
  }

 private:
  union Words {
    Vector vector;
    uint32_t words[kCount / 2];
  };
};

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

template <typename T, typename Vector>
using Elements = std::conditional_t<kIsHalf<T>, HalfElements<T, Vector>, PlainElements<T, Vector>>;

template <typename T>
using ComputeOf = std::conditional_t<kIsHalf<T>, float, T>;

// Integers wrap around: their sums and products are computed in an unsigned type.
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

// Rounded before it is added to another value: never fused.
__device__ __forceinline__ float scaled(float value, double factor) {
  return __fmul_rn(value, static_cast<float>(factor));
}
__device__ __forceinline__ double scaled(double value, double factor) {
  return __dmul_rn(value, factor);
}

// Computes kSum and kAverage.
template <typename T>
struct Sums {
  using Element = T;
  using Compute = ComputeOf<T>;

  __device__ __forceinline__ static Compute begin(const ReducePlan&, Compute value) { return value; }
  __device__ __forceinline__ static Compute combine(const ReducePlan&, Compute a, Compute b) {
    return wrapping_sum(a, b);
  }
  __device__ __forceinline__ static Compute average(const ReducePlan& plan, Compute total) {
    return total / static_cast<Compute>(plan.num_ranks);
  }
};

template <typename T>
struct AnyReduction {
  using Element = T;
  using Compute = ComputeOf<T>;

  __device__ __forceinline__ static Compute begin(const ReducePlan& plan, Compute value) {
    if constexpr (std::is_floating_point_v<Compute>) {
      if (plan.reduction == Reduction::kPremulSum) return scaled(value, plan.premul_factor);
    }
    return value;
  }

  // A NaN on either side wins, as in torch.minimum and torch.maximum.
  __device__ __forceinline__ static Compute combine(const ReducePlan& plan, Compute a, Compute b) {
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

  __device__ __forceinline__ static Compute average(const ReducePlan& plan, Compute total) {
    return Sums<T>::average(plan, total);
  }
};

// Operates on whole 8-byte words: kBitAnd, kBitOr, kBitXor. On bytes of 0 and 1 these are all the reductions of bool.
struct Bits {
  using Element = uint64_t;
  using Compute = uint64_t;

  __device__ __forceinline__ static uint64_t begin(const ReducePlan&, uint64_t word) { return word; }
  __device__ __forceinline__ static uint64_t combine(const ReducePlan& plan, uint64_t a, uint64_t b) {
    switch (plan.reduction) {
      case Reduction::kBitAnd:
        return a & b;
      case Reduction::kBitOr:
        return a | b;
      default:
        return a ^ b;
    }
  }
  __device__ __forceinline__ static uint64_t average(const ReducePlan&, uint64_t word) { return word; }
};

// Passes on unchanged what only one rank has.
struct Relay {
  using Element = uint64_t;
  using Compute = uint64_t;

  __device__ __forceinline__ static uint64_t begin(const ReducePlan&, uint64_t word) { return word; }
  __device__ __forceinline__ static uint64_t combine(const ReducePlan&, uint64_t a, uint64_t) { return a; }
  __device__ __forceinline__ static uint64_t average(const ReducePlan&, uint64_t word) { return word; }
};

// Accumulates the elements of one vector over the ranks, in the order of the calls.
template <typename Arithmetic, typename Vector>
class Accumulator {
 public:
  __device__ __forceinline__ void set(const ReducePlan& plan, Vector first) {
    totals_ = Totals::of(first);
#pragma unroll
    for (auto& total : totals_.values) total = Arithmetic::begin(plan, total);
  }

  __device__ __forceinline__ void add(const ReducePlan& plan, Vector next) {
    const Totals elements = Totals::of(next);
#pragma unroll
    for (int k = 0; k < Totals::kCount; ++k) {
      totals_.values[k] = Arithmetic::combine(plan, totals_.values[k], Arithmetic::begin(plan, elements.values[k]));
    }
  }

  // Returns the total and consumes it. One branch serves all elements: a separate inline division for each would be
  // most of a kernel's code.
  __device__ __forceinline__ Vector result(const ReducePlan& plan) {
    if (plan.reduction == Reduction::kAverage) {
#pragma unroll
      for (auto& total : totals_.values) total = Arithmetic::average(plan, total);
    }
    return totals_.round();
  }

 private:
  using Totals = Elements<typename Arithmetic::Element, Vector>;

  Totals totals_;
};

}  // namespace axon::kernels
