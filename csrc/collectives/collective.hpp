// What a collective is asked to do, and how an algorithm for it looks.
#pragma once

#include <span>
#include <string_view>

#include "base/task.hpp"
#include "memory/buffer.hpp"
#include "messaging/exchange.hpp"

namespace axon::collectives {

// `inputs` and `outputs` hold one shard, or one a rank (index = rank), as the operation has it:
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
// Shards may be empty. Memory stays valid until the operation has come to rest.
struct CollectiveArguments {
  transport::OperationKind kind{};
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1.0;
  int root = -1;
  std::span<const ConstBuffer> inputs;
  std::span<const Buffer> outputs;
};

// Runs on every rank of the exchange with matching arguments. Each algorithm has a file of its own in the operation's
// folder, and a row in the registry (selector).
using Algorithm = Task<Status> (*)(messaging::Exchange& exchange, const CollectiveArguments& arguments);

}  // namespace axon::collectives
