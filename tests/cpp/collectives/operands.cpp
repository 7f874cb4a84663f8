#include "collectives/operands.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "collectives/arithmetic/arithmetic.hpp"

namespace axon::collectives {
namespace {

// Small non-negative integers, which are exact in every type. In float types only the leading bytes are nonzero.
void store_integer(DataType dtype, std::byte* at, uint32_t value) {
  const auto put = [at](auto typed) { std::memcpy(at, &typed, sizeof(typed)); };
  const auto as_float = static_cast<float>(value);
  switch (dtype) {
    case DataType::kFloat16:
      // converts float's 23-bit mantissa and bias 127 to a 10-bit mantissa and bias 15
      return put(static_cast<uint16_t>(value == 0 ? 0 : (std::bit_cast<uint32_t>(as_float) - (112u << 23)) >> 13));
    case DataType::kBFloat16:
      return put(static_cast<uint16_t>(std::bit_cast<uint32_t>(as_float) >> 16));
    case DataType::kFloat32:
    case DataType::kComplex64:
      return put(as_float);
    case DataType::kFloat64:
    case DataType::kComplex128:
      return put(static_cast<double>(value));
    case DataType::kBool:
      return put(static_cast<uint8_t>(value % 2));
    default:
      std::memcpy(at, &value, std::min(sizeof(value), size_of(dtype)));
  }
}

bool is_reduction(transport::OperationKind kind) {
  return kind == transport::OperationKind::kAllReduce || kind == transport::OperationKind::kReduce ||
         kind == transport::OperationKind::kReduceScatter;
}

size_t total(const std::vector<size_t>& counts) {
  size_t sum = 0;
  for (const size_t count : counts) sum += count;
  return sum;
}

}  // namespace

OperationCase uniform_case(transport::OperationKind kind, int num_ranks, size_t num_elements) {
  OperationCase operation{.kind = kind};
  if (is_reduction(kind)) operation.reduction = Reduction::kSum;
  operation.num_elements.assign(static_cast<size_t>(num_ranks), num_elements);
  return operation;
}

Operands::Operands(const OperationCase& operation, int num_ranks, Values values)
    : operation_(operation), num_ranks_(num_ranks), values_(values), sides_(static_cast<size_t>(num_ranks)) {
  if (operation.kind != transport::OperationKind::kBarrier)
    is_reduction(operation.kind) ? prepare_reduction() : prepare_movement();
  for (Side& side : sides_) {
    for (Bytes& input : side.inputs) side.input_views.push_back({input.data(), input.size()});
    for (Bytes& output : side.outputs) side.output_views.push_back({output.data(), output.size()});
    side.inputs_before = side.inputs;
    side.outputs_before = side.outputs;
  }
}

Operands::Bytes Operands::fill(int source, int destination, size_t num_elements) {
  Bytes bytes(num_elements * size_of(operation_.dtype));
  for (size_t i = 0; i < num_elements; ++i) {
    std::byte* at = bytes.data() + i * size_of(operation_.dtype);
    if (values_ == Values::kRandomFloats) {
      const float value =
          std::ldexp(static_cast<float>(random_() % 1000003) - 500000.0f, static_cast<int>(random_() % 20));
      std::memcpy(at, &value, sizeof(value));
    } else {
      const size_t mixed = i * 7 + static_cast<size_t>(source) * 3 + static_cast<size_t>(destination) * 5 + i / 61;
      store_integer(operation_.dtype, at, static_cast<uint32_t>(mixed % 4));
    }
  }
  return bytes;
}

std::vector<Operands::Bytes> Operands::contributions(size_t num_elements) {
  std::vector<Bytes> all;
  for (int rank = 0; rank < num_ranks_; ++rank) all.push_back(fill(rank, 0, num_elements));
  return all;
}

Operands::Bytes Operands::reduced(const std::vector<Bytes>& contributions) const {
  Bytes result(contributions[0].size());
  std::vector<ConstBuffer> operands;
  for (const Bytes& bytes : contributions) operands.push_back({bytes.data(), bytes.size()});
  combine({.dtype = operation_.dtype, .reduction = operation_.reduction, .num_ranks = num_ranks_, .premul_factor = 2.0},
          {result.data(), result.size()}, operands, result.size() / size_of(operation_.dtype));
  return result;
}

void Operands::prepare_reduction() {
  const bool scatters = operation_.kind == transport::OperationKind::kReduceScatter;
  const auto contributed = contributions(scatters ? total(operation_.num_elements) : operation_.num_elements[0]);
  const Bytes result = reduced(contributed);
  size_t begin = 0;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    Side& side = sides_[static_cast<size_t>(rank)];
    const Bytes& own = contributed[static_cast<size_t>(rank)];
    if (operation_.kind == transport::OperationKind::kAllReduce) {
      side.outputs = {own};
      side.expected = {result};
    } else if (operation_.kind == transport::OperationKind::kReduce) {
      side.inputs = {own};
      side.outputs = {Bytes(own.size(), std::byte{0xEE})};
      side.expected = rank == operation_.root ? std::vector<Bytes>{result} : side.outputs;
    } else {
      size_t offset = 0;
      for (const size_t count : operation_.num_elements) {
        const size_t length = count * size_of(operation_.dtype);
        const auto first = own.begin() + static_cast<std::ptrdiff_t>(offset);
        side.inputs.emplace_back(first, first + static_cast<std::ptrdiff_t>(length));
        offset += length;
      }
      const auto first = result.begin() + static_cast<std::ptrdiff_t>(begin);
      begin += side.inputs[static_cast<size_t>(rank)].size();
      side.expected.emplace_back(first, result.begin() + static_cast<std::ptrdiff_t>(begin));
      side.outputs = {Bytes(side.expected[0].size(), std::byte{0xEE})};
    }
  }
}

size_t Operands::all_to_all_elements(int source, int destination) const {
  const size_t count = operation_.num_elements[static_cast<size_t>(destination)];
  return count == 0 ? 0 : count + static_cast<size_t>(source);
}

void Operands::prepare_movement() {
  const auto blank = [](const Bytes& like) { return Bytes(like.size(), std::byte{0xEE}); };
  for (int rank = 0; rank < num_ranks_; ++rank) {
    Side& side = sides_[static_cast<size_t>(rank)];
    const bool is_root = rank == operation_.root;
    const size_t own_elements = operation_.num_elements[static_cast<size_t>(rank)];
    if (operation_.kind == transport::OperationKind::kBroadcast) {
      side.expected = {fill(operation_.root, 0, operation_.num_elements[0])};
      side.outputs = {is_root ? side.expected[0] : blank(side.expected[0])};
    } else if (operation_.kind == transport::OperationKind::kScatter) {
      side.expected = {fill(operation_.root, rank, own_elements)};
      side.outputs = {blank(side.expected[0])};
    } else if (operation_.kind != transport::OperationKind::kAllToAll) {
      side.inputs = {fill(rank, 0, own_elements)};
    }
    for (int other = 0; other < num_ranks_; ++other) {
      const size_t other_elements = operation_.num_elements[static_cast<size_t>(other)];
      if (operation_.kind == transport::OperationKind::kScatter && is_root)
        side.inputs.push_back(fill(rank, other, other_elements));
      if (operation_.kind == transport::OperationKind::kAllToAll) {
        side.inputs.push_back(fill(rank, other, all_to_all_elements(rank, other)));
        side.expected.push_back(fill(other, rank, all_to_all_elements(other, rank)));
      }
      const bool gathers = operation_.kind == transport::OperationKind::kAllGather ||
                           (operation_.kind == transport::OperationKind::kGather && is_root);
      if (gathers) side.expected.push_back(fill(other, 0, other_elements));
    }
    for (size_t i = side.outputs.size(); i < side.expected.size(); ++i) side.outputs.push_back(blank(side.expected[i]));
  }
}

std::vector<Call> Operands::calls(const AlgorithmRow& row) const {
  std::vector<Call> calls;
  const bool has_root =
      operation_.kind == transport::OperationKind::kBroadcast || operation_.kind == transport::OperationKind::kReduce ||
      operation_.kind == transport::OperationKind::kGather || operation_.kind == transport::OperationKind::kScatter;
  for (const Side& side : sides_) {
    Call call{.algorithm = row.algorithm};
    call.fingerprint = {.operation = operation_.kind,
                        .dtype = operation_.dtype,
                        .reduction = operation_.reduction,
                        .algorithm = row.id,
                        .root = has_root ? operation_.root : -1};
    call.arguments = {.kind = operation_.kind,
                      .dtype = operation_.dtype,
                      .reduction = operation_.reduction,
                      .premul_factor = 2.0,
                      .root = operation_.root,
                      .inputs = side.input_views,
                      .outputs = side.output_views};
    calls.push_back(call);
  }
  return calls;
}

void Operands::reset() {
  for (Side& side : sides_) {
    for (size_t i = 0; i < side.outputs.size(); ++i) {
      std::copy(side.outputs_before[i].begin(), side.outputs_before[i].end(), side.outputs[i].begin());
    }
  }
}

void Operands::expect_right(int rank) const {
  const Side& side = sides_[static_cast<size_t>(rank)];
  EXPECT_TRUE(side.inputs == side.inputs_before) << "inputs changed on rank " << rank;
  EXPECT_TRUE(side.outputs == side.expected) << "wrong outputs on rank " << rank;
}

void Operands::expect_all_equal() const {
  for (const Side& side : sides_) EXPECT_TRUE(side.outputs == sides_[0].outputs);
}

}  // namespace axon::collectives
