// The tensors of one operation on all ranks, filled with small integers, and the expected results.
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
  // The number of elements in each rank's shard; operations with one tensor use the first. In an all_to_all, the shard
  // from rank r to this rank has r more.
  std::vector<size_t> num_elements{};
};

// All ranks have the same size.
OperationCase uniform_case(transport::OperationKind kind, int num_ranks, size_t num_elements);

class Operands {
 public:
  enum class Values { kSmallIntegers, kRandomFloats };

  Operands(const OperationCase& operation, int num_ranks, Values values = Values::kSmallIntegers);

  std::vector<Call> calls(const AlgorithmRow& row) const;

  // Restores the outputs to their content before the operation.
  void reset();
  // Expects that every output of `rank` has the expected value, and its inputs are unchanged.
  void expect_right(int rank) const;
  // Expects that outputs are bitwise identical on all ranks.
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
