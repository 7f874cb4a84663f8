// Reductions over host memory, between the messages of a collective.
//
// Every result depends on the operands and their order alone. It is bitwise the same on every x86-64 processor,
// whatever its vector width, except for the payload of a NaN made from two NaNs. Semantics follow torch:
//   float16, bfloat16   accumulated in float32, rounded once, to nearest even
//   integers            wrap around; AVG divides the wrapped sum, truncating towards zero
//   bool                bytes 0 and 1: SUM, MAX and BOR are or; PRODUCT, MIN and BAND are and; BXOR is xor
//   complex             SUM, AVG, PREMUL_SUM (by a real factor)
//   MIN, MAX            a NaN takes precedence, as in torch.minimum and torch.maximum
//   PREMUL_SUM          floating point only; each operand is multiplied in the precision of the accumulation
//
// Pointers need no alignment. The memory must be host memory. The functions allocate nothing, never block, keep no
// state.
//
//   combine({.dtype = DataType::kBFloat16, .reduction = Reduction::kAverage, .num_ranks = 2}, output, operands, n);
#pragma once

#include <cstddef>
#include <span>

#include "base/data_type.hpp"
#include "base/status.hpp"
#include "memory/buffer.hpp"

namespace axon::collectives {

struct ReductionPlan {
  DataType dtype{};
  Reduction reduction{};
  int num_ranks = 1;           // AVG divides by it
  double premul_factor = 1.0;  // of PREMUL_SUM
};

// Checks that the reduction is defined for the type. The functions below require a plan that passes.
Status check(const ReductionPlan& plan);

// Returns the type of partial results that travel: float32 for float16 and bfloat16, else the type itself.
DataType partial_type(DataType dtype) noexcept;

// output = operands[0] (+) operands[1] (+) …, from left to right. There is at least one operand. The output may be
// exactly one of them, but must not overlap them otherwise.
void combine(const ReductionPlan& plan, Buffer output, std::span<const ConstBuffer> operands,
             size_t num_elements) noexcept;

// The same in steps, for algorithms whose partial results travel; partials hold elements of partial_type().
// begin, add in order, finish: bitwise what combine() returns for the same order. `own` is an operand in its stored
// type. A partial may not be the input of begin or the output of finish, except where partial_type() is the type
// itself.
void begin_partial(const ReductionPlan& plan, Buffer partial, ConstBuffer own, size_t num_elements) noexcept;
void add_to_partial(const ReductionPlan& plan, Buffer partial, ConstBuffer other_partial, size_t num_elements) noexcept;
void add_own_to_partial(const ReductionPlan& plan, Buffer partial, ConstBuffer own, size_t num_elements) noexcept;
void finish_partial(const ReductionPlan& plan, Buffer output, ConstBuffer partial, size_t num_elements) noexcept;

}  // namespace axon::collectives
