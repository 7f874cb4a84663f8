#include "collectives/arithmetic/arithmetic.hpp"

#include <string>

#include "collectives/arithmetic/kernels.hpp"

namespace axon::collectives {

static const arithmetic::KernelTable& fastest_table() noexcept {
  static const arithmetic::KernelTable& table = *arithmetic::usable_tables().front();
  return table;
}

static arithmetic::PlanKernels fastest_kernels(const ReductionPlan& plan) noexcept {
  return arithmetic::kernels_of(fastest_table(), plan);
}

Status check(const ReductionPlan& plan) {
  if (fastest_kernels(plan).reduce_partial == nullptr) {
    return {ErrorCode::kInvalidArgument,
            std::string("reduction ") + name_of(plan.reduction) + " is not defined for " + name_of(plan.dtype)};
  }
  if (plan.num_ranks < 1) {
    return {ErrorCode::kInvalidArgument, "a reduction over " + std::to_string(plan.num_ranks) + " ranks"};
  }
  return {};
}

DataType partial_type(DataType dtype) noexcept {
  const bool is_half = dtype == DataType::kFloat16 || dtype == DataType::kBFloat16;
  return is_half ? DataType::kFloat32 : dtype;
}

void combine(const ReductionPlan& plan, Buffer output, std::span<const ConstBuffer> operands,
             size_t num_elements) noexcept {
  arithmetic::combine(fastest_kernels(plan), output.data, operands, num_elements);
}

void begin_partial(const ReductionPlan& plan, Buffer partial, ConstBuffer own, size_t num_elements) noexcept {
  arithmetic::begin_partial(fastest_kernels(plan), partial.data, own.data, num_elements);
}

void add_to_partial(const ReductionPlan& plan, Buffer partial, ConstBuffer other_partial,
                    size_t num_elements) noexcept {
  arithmetic::add_to_partial(fastest_kernels(plan), partial.data, other_partial.data, num_elements);
}

void add_own_to_partial(const ReductionPlan& plan, Buffer partial, ConstBuffer own, size_t num_elements) noexcept {
  arithmetic::add_own_to_partial(fastest_kernels(plan), partial.data, own.data, num_elements);
}

void finish_partial(const ReductionPlan& plan, Buffer output, ConstBuffer partial, size_t num_elements) noexcept {
  arithmetic::finish_partial(fastest_kernels(plan), output.data, partial.data, num_elements);
}

}  // namespace axon::collectives
