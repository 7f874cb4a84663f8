#include "c10d/fused/pushed.hpp"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>

#include "base/log.hpp"
#include "c10d/errors.hpp"
#include "cuda/memory.hpp"
#include "stream/device_group.hpp"
#include "stream/workspace.hpp"

namespace axon {

namespace {

// Less is moved first: a kernel does that before the copy engines have met.
constexpr size_t kLeastBytes = size_t{16} << 20;

// Rows of float8's scales behind the values, at a boundary that every product takes.
constexpr size_t kAlignment = 256;

size_t aligned(size_t num_bytes) {
  return (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t row_bytes(const at::Tensor& rows) {
  return static_cast<size_t>(rows.size(1)) * rows.element_size();
}

// A call's hold on the group's stream and on the ranks' workspaces.
class Pushing {
 public:
  struct Plan {
    DeviceOperation operation{};
    at::ScalarType dtype{};
    size_t num_bytes = 0;        // moved by all ranks together
    size_t workspace_bytes = 0;  // of a rank
  };

  static std::optional<Pushing> open(AxonBackend& backend, at::Device device, const Plan& plan);
  Pushing(Pushing&&) noexcept = default;
  // Half-way, for an exception: ends the group, whose other ranks would wait for what never comes.
  ~Pushing();

  // On the current stream: behind it all ranks have come here, and nobody uses the workspaces any more.
  void begin();
  // What is pushed from here on is there when the current stream has come this far.
  void follow_current() { order(current_, pushing_); }
  void push(size_t peer, size_t offset, const at::Tensor& rows) {
    copy(workspace_->at(static_cast<int>(peer)) + offset, rows);
  }
  // Behind it what the others push is in this rank's workspace, and what this rank pushes in theirs.
  void end();
  // From the workspace, behind end().
  void copy_out(const at::Tensor& source, const at::Tensor& target) {
    copy(static_cast<std::byte*>(target.data_ptr()), source);
  }
  void await_arrival() { arrived_.block(current_); }
  // The current stream waits for all of this: tensors are the caller's again.
  void join();

  // A part of this rank's workspace.
  at::Tensor tensor(size_t offset, at::IntArrayRef sizes, const at::TensorOptions& options) const {
    return at::for_blob(workspace_->at(rank_) + offset, sizes)
        .options(options)
        .target_device(options.device())
        .make_tensor();
  }

 private:
  Pushing(CudaSide& side, const Workspace* workspace, const Meeting& meeting, int rank);
  static void order(c10::Stream earlier, c10::Stream later);
  void copy(std::byte* target, const at::Tensor& source);

  CudaSide& side_;
  const Workspace* workspace_;
  Meeting meeting_;
  int rank_;
  c10::Stream current_;
  c10::Stream pushing_;
  c10::Event arrived_{at::kCUDA};
  bool is_open_ = false;   // between begin() and end()
  bool is_apart_ = false;  // between begin() and join()
};

std::optional<Pushing> Pushing::open(AxonBackend& backend, at::Device device, const Plan& plan) {
  if (backend.getSize() < 2 || plan.num_bytes < kLeastBytes) return std::nullopt;
  if (!at::isFloatingType(plan.dtype) && !at::isComplexType(plan.dtype)) return std::nullopt;
  CudaSide& side = backend.cuda_side(device);
  const Workspace* workspace = side.workspace(plan.workspace_bytes, backend.timeout());
  if (workspace == nullptr) return std::nullopt;
  const Meeting meeting{.operation = plan.operation,
                        .dtype = to_data_type(plan.dtype),
                        .num_bytes = plan.num_bytes,
                        .timeout = backend.timeout()};
  return Pushing(side, workspace, meeting, backend.getRank());
}

Pushing::Pushing(CudaSide& side, const Workspace* workspace, const Meeting& meeting, int rank)
    : side_(side),
      workspace_(workspace),
      meeting_(meeting),
      rank_(rank),
      current_(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(side.device())),
      pushing_(side.side_stream()) {}

Pushing::~Pushing() {
  try {
    if (is_open_) side_.give_up();
    if (is_apart_) join();
  } catch (const std::exception&) {
    log::info("CUDA has failed: a matrix product's tensors may still be read");
  }
}

void Pushing::begin() {
  side_.meet(meeting_, current_);
  is_open_ = is_apart_ = true;
  follow_current();
}

void Pushing::end() {
  side_.meet(meeting_, pushing_);
  is_open_ = false;
  arrived_.record(pushing_);
}

void Pushing::join() {
  order(pushing_, current_);
  is_apart_ = false;
}

void Pushing::order(c10::Stream earlier, c10::Stream later) {
  c10::Event passed(at::kCUDA);
  passed.record(earlier);
  passed.block(later);
}

void Pushing::copy(std::byte* target, const at::Tensor& source) {
  const StreamView stream(static_cast<cudaStream_t>(pushing_.native_handle()));
  const Status copied = copy_async(target, source.const_data_ptr(), source.nbytes(), stream);
  if (!copied.ok()) throw_failure(copied);
}

// A product of fewer rows does not fill the device well.
constexpr int64_t kRowsOfTile = 256;

// In a group of two there is one peer: half of its rows is on its way while the other half is multiplied.
c10::SmallVector<RowRange, 2> cut(RowRange block, size_t num_ranks) {
  if (num_ranks > 2) return {block};
  const int64_t num_tiles = (block.num_rows + kRowsOfTile - 1) / kRowsOfTile;
  const int64_t first = std::min((num_tiles + 1) / 2 * kRowsOfTile, block.num_rows);
  if (first == block.num_rows) return {block};
  return {{.begin = block.begin, .num_rows = first},
          {.begin = block.begin + first, .num_rows = block.num_rows - first}};
}

// In the accumulation type of the elements, rounded once.
void sum(const at::Tensor& slots, const c10d::ReduceOp& reduction, at::Tensor& output) {
  static constexpr std::array<int64_t, 1> kRanks{0};
  if (reduction == c10d::ReduceOp::AVG) {
    at::mean_out(output, slots, at::IntArrayRef(kRanks));
  } else if (slots.size(0) == 2) {
    at::add_out(output, slots[0], slots[1]);  // the faster kernel
  } else {
    at::sum_out(output, slots, at::IntArrayRef(kRanks));
  }
}

}  // namespace

std::optional<GatheredProducts> run_pushed(const AllGatherMatmul& call) {
  const Rows& x = call.x;
  const RowPartition& rows = call.rows;
  const c10::DeviceGuard on_device(x.values.device());
  const int64_t num_rows = rows.all().num_rows;
  const size_t num_bytes = static_cast<size_t>(num_rows) * row_bytes(x.values);
  const size_t begin_of_scales = aligned(num_bytes);
  const size_t scale_bytes = x.has_scale_a_row() ? static_cast<size_t>(num_rows) * sizeof(float) : 0;
  std::optional<Pushing> pushing = Pushing::open(call.backend, x.values.device(),
                                                 {.operation = DeviceOperation::kAllGatherMatmul,
                                                  .dtype = x.values.scalar_type(),
                                                  .num_bytes = num_bytes,
                                                  .workspace_bytes = begin_of_scales + scale_bytes});
  if (!pushing) return std::nullopt;
  Rows all{.values = pushing->tensor(0, {num_rows, x.values.size(1)}, x.values.options()), .scales = x.scales};
  if (x.has_scale_a_row()) all.scales = pushing->tensor(begin_of_scales, {num_rows, 1}, x.scales.options());
  GatheringProducts products(call);
  const size_t first_row = static_cast<size_t>(rows.own().begin);
  pushing->begin();
  for (size_t distance = 1; distance < rows.num_ranks(); ++distance) {
    const size_t peer = (rows.rank() + distance) % rows.num_ranks();
    pushing->push(peer, first_row * row_bytes(x.values), x.values);
    if (x.has_scale_a_row()) pushing->push(peer, begin_of_scales + first_row * sizeof(float), x.scales);
  }
  pushing->end();
  if (call.returns_gathered) {
    pushing->copy_out(x.values, products.gathered_rows(rows.own()));
    for (const RowRange range : rows.others()) {
      pushing->copy_out(all.slice(range).values, products.gathered_rows(range));
    }
  }
  products.multiply(x, rows.own());
  pushing->await_arrival();
  for (const RowRange range : rows.others()) products.multiply(all.slice(range), range);
  pushing->join();
  return std::move(products).finish();
}

std::optional<at::Tensor> run_pushed(const MatmulReduceScatter& call) {
  const RowPartition& rows = call.rows;
  const c10::DeviceGuard on_device(call.x.values.device());
  Weight weight = call.weight;
  weight.bias.reset();  // a part of the sum, not of each product
  at::Tensor output = weight.empty_output(rows.own().num_rows);
  const size_t bytes_a_row = row_bytes(output);
  std::optional<Pushing> pushing =
      Pushing::open(call.backend, output.device(),
                    {.operation = DeviceOperation::kMatmulReduceScatter,
                     .dtype = output.scalar_type(),
                     .num_bytes = static_cast<size_t>(rows.all().num_rows) * bytes_a_row,
                     .workspace_bytes = rows.num_ranks() * static_cast<size_t>(rows.most_rows()) * bytes_a_row});
  if (!pushing) return std::nullopt;
  std::vector<at::Tensor> partials;  // read by the pushes
  for (size_t distance = 1; distance < rows.num_ranks(); ++distance) {
    const size_t peer = (rows.rank() + distance) % rows.num_ranks();
    const RowRange block = rows.of(peer);
    size_t offset = rows.rank() * static_cast<size_t>(block.num_rows) * bytes_a_row;
    for (const RowRange piece : cut(block, rows.num_ranks())) {
      partials.push_back(weight.empty_output(piece.num_rows));
      multiply(call.x.slice(piece), weight, partials.back());
      partials.size() == 1 ? pushing->begin() : pushing->follow_current();
      pushing->push(peer, offset, partials.back());
      offset += partials.back().nbytes();
    }
  }
  pushing->end();
  const auto num_ranks = static_cast<int64_t>(rows.num_ranks());
  const at::Tensor slots = pushing->tensor(0, {num_ranks, output.size(0), output.size(1)}, output.options());
  multiply(call.x.slice(rows.own()), weight, slots[static_cast<int64_t>(rows.rank())]);
  pushing->await_arrival();
  sum(slots, call.reduction, output);
  pushing->join();
  if (call.weight.bias) output.add_(*call.weight.bias);
  return output;
}

}  // namespace axon
