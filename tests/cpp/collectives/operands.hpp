// The tensors of one operation on all ranks, filled with small integers, and what they have to become.
#pragma once

#include <span>
#include <vector>

#include "collectives/selector.hpp"
#include "collectives/world.hpp"

namespace axon::collectives {

struct OperationCase {
  transport::OperationKind kind{};
  DataType dtype = DataType::kFloat32;
  Reduction reduction = Reduction::kNone;
  int root = 0;
  // Elements of the shard of each rank; operations with one tensor take the first. all_to_all: of the shard from any
  // rank r to this one, r added.
  std::vector<size_t> num_elements{};
};

// One size for all ranks.
OperationCase uniform_case(transport::OperationKind kind, int num_ranks, size_t num_elements);

class Operands {
 public:
  enum class Values { kSmallIntegers, kRandomFloats };

  Operands(const OperationCase& operation, int num_ranks, Values values = Values::kSmallIntegers);

  std::vector<Call> calls(const AlgorithmRow& row) const;

  // Outputs are as they were before the operation.
  void reset();
  // Every output of `rank` is what the operation should yield, and its inputs are untouched.
  void expect_right(int rank) const;
  // Outputs are the same on all ranks, bit for bit.
  void expect_all_equal() const;

 private:
  using Bytes = std::vector<std::byte>;
  struct Side {
    std::vector<Bytes> inputs;
    std::vector<Bytes> outputs;
    std::vector<Bytes> expected;
    std::vector<ConstBuffer> input_views;
    std::vector<Buffer> output_views;
    std::vector<Bytes> inputs_before;
    std::vector<Bytes> outputs_before;
  };

  Bytes fill(int source, int destination, size_t num_elements);
  size_t all_to_all_elements(int source, int destination) const;
  std::vector<Bytes> contributions(size_t num_elements);
  Bytes reduced(const std::vector<Bytes>& contributions) const;
  void prepare_reduction();
  void prepare_movement();

  const OperationCase operation_;
  const int num_ranks_;
  const Values values_;
  std::mt19937_64 random_{1};
  std::vector<Side> sides_;
};

}  // namespace axon::collectives
