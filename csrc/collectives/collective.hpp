// The arguments of a collective, and the signature of its algorithms.
#pragma once

#include <span>
#include <string_view>

#include "base/task.hpp"
#include "memory/buffer.hpp"
#include "messaging/view.hpp"

namespace axon::collectives {

// `inputs` and `outputs` hold one shard, or one shard per rank (index = rank), depending on the operation:
//
// clang-format off
//   operation       inputs                        outputs
//   broadcast       –                             1: read at the root, written elsewhere
//   all_reduce      –                             1: read and written
//   reduce          1                             1: written at the root only; may be the input itself
//   all_gather      1                             n: shard r from rank r, sizes may differ; own shard may be the input
//   gather          1                             n at the root, none elsewhere
//   scatter         n at the root, none elsewhere 1
//   reduce_scatter  n: shard r for rank r         1: sizes may differ by rank; may be the own shard of the inputs
//   all_to_all      n: shard r for rank r         n: shard r from rank r
//   barrier         –                             –
// clang-format on
//
// Shards may be empty. The memory must stay valid until the operation is released.
struct CollectiveArguments {
  transport::OperationKind kind{};
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1.0;
  int root = -1;
  std::span<const ConstBuffer> inputs{};
  std::span<const Buffer> outputs{};
  // Set if these are one part of a longer all_to_all: its arguments, and the part's number.
  const CollectiveArguments* whole = nullptr;
  size_t part = 0;
};

// Runs on every rank of the view with matching arguments. Each algorithm has its own file in the operation's folder,
// and a row in algorithm_names.hpp.
using Algorithm = Task<Status> (*)(messaging::View& view, const CollectiveArguments& arguments);

}  // namespace axon::collectives
