// The loops of the arithmetic, compiled once for each vector width; the processor's features select one at run time.
//
// Each kernel does one arithmetic step per element, so that no compiler can contract two of them into one rounding.
// That keeps the widths bitwise equal.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "collectives/arithmetic/arithmetic.hpp"

namespace axon::arithmetic {

enum class Operator : uint8_t { kSum, kProduct, kMin, kMax, kAnd, kOr, kXor };
inline constexpr size_t kNumOperators = 7;

// output = left (+) right; the output may be exactly either.
using ReduceKernel = void (*)(std::byte* output, const std::byte* left, const std::byte* right, size_t num_scalars);
using ReduceKernels = std::array<ReduceKernel, kNumOperators>;

// output = f(input, argument); the output may be exactly the input where both have one width.
using MapKernel = void (*)(std::byte* output, const std::byte* input, size_t num_scalars, double argument);

// The kernels of one type; null where an operation is not defined.
struct TypeKernels {
  ReduceKernels reduce_stored{};   // stored (+) stored → stored
  ReduceKernels reduce_next{};     // partial (+) stored → partial
  ReduceKernels reduce_partial{};  // partial (+) partial → partial
  MapKernel widen{};               // stored → partial; null where they are the same type
  MapKernel scale{};               // stored × argument → partial
  MapKernel narrow{};              // partial → stored; null where they are the same type
  MapKernel divide{};              // partial ÷ argument → stored
  size_t num_scalars = 1;          // per element: a complex number is two
};

inline constexpr size_t kNumDataTypes = 16;

struct KernelTable {
  const char* name;
  std::array<TypeKernels, kNumDataTypes> types;  // by DataType
};

extern const KernelTable kSse2Kernels;  // the baseline of x86-64
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;

// Returns the tables that this processor can run, fastest first.
std::span<const KernelTable* const> usable_tables() noexcept;

// The kernels of one plan. An undefined plan has no reduce_partial.
struct PlanKernels {
  ReduceKernel reduce_stored{};  // null where an operand or the result needs more than the reduction
  ReduceKernel reduce_next{};    // null where each operand needs `begin`
  ReduceKernel reduce_partial{};
  MapKernel begin{};   // null: a stored operand is a partial already
  MapKernel finish{};  // null: a partial is the result already
  double begin_argument = 0;
  double finish_argument = 0;
  size_t num_scalars = 1;  // per element
  size_t num_stored_bytes = 1;
  size_t num_partial_bytes = 1;
};

PlanKernels kernels_of(const KernelTable& table, const collectives::ReductionPlan& plan) noexcept;

// The public functions, with kernels of the caller's choice.
void combine(const PlanKernels& kernels, std::byte* output, std::span<const ConstBuffer> operands,
             size_t num_elements) noexcept;
void begin_partial(const PlanKernels& kernels, std::byte* partial, const std::byte* own, size_t num_elements) noexcept;
void add_to_partial(const PlanKernels& kernels, std::byte* partial, const std::byte* other,
                    size_t num_elements) noexcept;
void add_own_to_partial(const PlanKernels& kernels, std::byte* partial, const std::byte* own,
                        size_t num_elements) noexcept;
void finish_partial(const PlanKernels& kernels, std::byte* output, const std::byte* partial,
                    size_t num_elements) noexcept;

}  // namespace axon::arithmetic
