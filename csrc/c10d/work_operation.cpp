// The memory of a Work's operations.
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "c10d/convert.hpp"
#include "c10d/errors.hpp"
#include "c10d/in_flight_works.hpp"
#include "c10d/work.hpp"
#include "python/shape_text.hpp"
#include "python/tensor_memory.hpp"

namespace axon::c10d_backend {

static bool needs_staging(const at::Tensor& tensor) {
  return !tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg();
}

// Elements that share an address would overwrite each other. torch refuses such outputs, too, but only when it copies
// back.
static void check_apart(const char* operation, const at::Tensor& tensor) {
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return;
  throw_value_error(std::string(operation) + ": an output of shape " + python::text_of(tensor.sizes()) +
                    " has strides " + python::text_of(tensor.strides()) +
                    ", so that several of its elements share their memory; allowed: a contiguous() copy");
}

// Returns the memory that holds the tensor's elements in order, possibly in a staging tensor.
Buffer WorkOperation::claim(const at::Tensor& tensor, Access access) {
  work_.claim_device(tensor.device(), name_of(arguments.kind));
  if (C10_UNLIKELY(work_.inputs_to_check_ != nullptr) && access != Access::kWrite) {
    const bool is_message = arguments.kind == transport::OperationKind::kPointToPoint;
    work_.inputs_to_check_->push_back({.operation = is_message ? "send" : name_of(arguments.kind), .tensor = tensor});
  }
  if (C10_LIKELY(!needs_staging(tensor))) return to_buffer(tensor);
  if (access != Access::kRead) check_apart(name_of(arguments.kind), tensor);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const python::BelowPython no_subclass;
  at::Tensor staged = at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
  if (access != Access::kWrite) staged.copy_(tensor);
  if (access == Access::kRead) {
    temporaries_.push_back(staged);
  } else {
    copies_back_.push_back({.staged = staged, .target = tensor});
  }
  return to_buffer(staged);
}

void WorkOperation::copy_back() {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const python::BelowPython no_subclass;
  for (const CopyBack& copy : copies_back_) {
    if (const auto lack = python::lack_of_memory(copy.target)) {
      throw_value_error(describe() + ": its output " + *lack + " now; allowed: to keep it as it is until wait()");
    }
    copy.target.copy_(copy.staged);
  }
  if (work_.device().is_cpu()) copies_back_.clear();  // a device may not have reached the copy yet
}

template <typename Blocks>
static void add_blocks(Blocks& blocks, Buffer whole, c10::ArrayRef<size_t> block_sizes) {
  size_t offset = 0;
  for (const size_t num_bytes : block_sizes) {
    blocks.push_back(whole.slice(offset, num_bytes));
    offset += num_bytes;
  }
}

void WorkOperation::add_input(const at::Tensor& tensor) {
  add_input_blocks(tensor, tensor.nbytes());
}

void WorkOperation::add_output(const at::Tensor& tensor, Access access) {
  outputs_.push_back(claim(tensor, access));
  work_.outputs_.push_back(tensor);
}

void WorkOperation::add_in_place(const at::Tensor& tensor, Access access) {
  add_output(tensor, access);
  inputs_.push_back(outputs_.back());
}

void WorkOperation::add_input_blocks(const at::Tensor& tensor, c10::ArrayRef<size_t> block_sizes) {
  add_blocks(inputs_, claim(tensor, Access::kRead), block_sizes);
  work_.inputs_.push_back(tensor);
}

void WorkOperation::add_output_blocks(const at::Tensor& tensor, c10::ArrayRef<size_t> block_sizes) {
  add_blocks(outputs_, claim(tensor, Access::kWrite), block_sizes);
  work_.outputs_.push_back(tensor);
}

static bool overlap(ConstBuffer left, ConstBuffer right) noexcept {
  return left.num_bytes != 0 && right.num_bytes != 0 && left.data < right.data + right.num_bytes &&
         right.data < left.data + left.num_bytes;
}

// Returns the smallest range that contains all blocks.
template <typename Blocks>
static ConstBuffer hull(const Blocks& blocks) noexcept {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  for (const auto& block : blocks) {
    if (block.num_bytes == 0) continue;
    begin = begin == nullptr ? block.data : std::min<const std::byte*>(begin, block.data);
    end = std::max<const std::byte*>(end, block.data + block.num_bytes);
  }
  return {.data = begin, .num_bytes = static_cast<size_t>(end - begin)};
}

// Returns whether this alias is safe: FSDP gathers into a tensor whose own shard is the input.
bool WorkOperation::may_alias(size_t input, size_t output) const noexcept {
  const bool identical =
      inputs_[input].data == outputs_[output].data && inputs_[input].num_bytes == outputs_[output].num_bytes;
  const bool own_block =
      arguments.kind == transport::OperationKind::kAllGather && output == static_cast<size_t>(work_.rank_);
  return identical && (own_block || arguments.kind == transport::OperationKind::kReduce);
}

bool WorkOperation::is_disturbed(size_t input) const noexcept {
  for (size_t output = 0; output < outputs_.size(); ++output) {
    if (overlap(inputs_[input], outputs_[output]) && !may_alias(input, output)) return true;
  }
  return false;
}

// Writing an output that overlaps an input would change the input before it is sent, so such inputs are copied first.
void WorkOperation::separate_inputs() {
  if (inputs_.empty() || outputs_.empty() || !overlap(hull(inputs_), hull(outputs_))) return;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (!is_disturbed(i)) continue;
    const python::BelowPython no_modes;
    const at::Tensor copy =
        at::from_blob(const_cast<std::byte*>(inputs_[i].data), {static_cast<int64_t>(inputs_[i].num_bytes)},
                      at::device(work_.device()).dtype(at::kByte))
            .clone();
    temporaries_.push_back(copy);
    inputs_[i] = to_buffer(copy);
  }
}

template <typename Blocks>
static uint64_t count_bytes(const Blocks& blocks) noexcept {
  uint64_t num_bytes = 0;
  for (const auto& block : blocks) num_bytes += block.num_bytes;
  return num_bytes;
}

uint64_t WorkOperation::num_bytes() const noexcept {
  return std::max(count_bytes(inputs_), count_bytes(outputs_));
}

void WorkOperation::seal() {
  if (direction == engine::Direction::kCollective) separate_inputs();
  arguments.inputs = {inputs_.data(), inputs_.size()};
  arguments.outputs = {outputs_.data(), outputs_.size()};
}

void WorkOperation::start(engine::Communicator& communicator) {
  engines_reference_ = c10::intrusive_ptr<AxonWork>::unsafe_reclaim_from_nonowning(&work_);
  communicator.start(*this);
}

void WorkOperation::on_finished() noexcept {
  work_.on_operation_finished(*this);
}

void WorkOperation::on_released() noexcept {
  c10::intrusive_ptr<AxonWork> last_touch = std::move(engines_reference_);
  if (!work_.device().is_cpu()) InFlightWorks::instance().discard(std::move(last_touch));
}

}  // namespace axon::c10d_backend
