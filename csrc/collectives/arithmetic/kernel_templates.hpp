// Loops and kernel table of one instruction set; see formats.hpp for how this is compiled.
#pragma once

#include <cstring>
#include <limits>
#include <type_traits>

#include "collectives/arithmetic/division.hpp"
#include "collectives/arithmetic/formats.hpp"
#include "collectives/arithmetic/kernels.hpp"

namespace axon::arithmetic {
namespace {

// Multiplies bytes, for which x86-64 has no products, in 16-bit lanes: g++ unpacks and packs, which takes twice as
// long.
inline Vector<uint8_t> byte_products(Vector<uint8_t> left, Vector<uint8_t> right) {
  const auto a = (Vector<uint16_t>)left, b = (Vector<uint16_t>)right;
  return (Vector<uint8_t>)(((a * b) & 0xff) | ((a >> 8) * (b & 0xff00)));
}

template <Operator kOperator, typename V>
inline V apply(V left, V right) {
  if constexpr (kOperator == Operator::kProduct && std::is_same_v<V, Vector<uint8_t>>)
    return byte_products(left, right);
  if constexpr (kOperator == Operator::kSum) return left + right;
  if constexpr (kOperator == Operator::kProduct) return left * right;
  // A comparison with NaN is false, which yields a NaN on the right; the second test yields one on the left.
  if constexpr (kOperator == Operator::kMin) return ((left < right) | (left != left)) ? left : right;
  if constexpr (kOperator == Operator::kMax) return ((left > right) | (left != left)) ? left : right;
  if constexpr (kOperator == Operator::kAnd) return left & right;
  if constexpr (kOperator == Operator::kOr) return left | right;
  if constexpr (kOperator == Operator::kXor) return left ^ right;
}

// A last, incomplete vector. It is processed in a copy, so that there is no second, scalar form of the arithmetic.
template <typename Format>
struct Tail {
  alignas(kVectorBytes) std::byte bytes[kVectorBytes] = {};

  Tail() = default;
  Tail(const std::byte* source, size_t num_scalars) { std::memcpy(bytes, source, num_scalars * Format::kNumBytes); }
  void copy_to(std::byte* target, size_t num_scalars) const {
    std::memcpy(target, bytes, num_scalars * Format::kNumBytes);
  }
};

template <typename Output, typename Left, typename Right, Operator kOperator>
void reduce_scalars(std::byte* output, const std::byte* left, const std::byte* right, size_t num_scalars) {
  constexpr size_t kLanes = kVectorBytes / sizeof(typename Output::Value);
  const size_t remainder = num_scalars % kLanes;
  const size_t end = num_scalars - remainder;
#pragma GCC unroll 4
  for (size_t i = 0; i < end; i += kLanes) {
    const auto result =
        apply<kOperator>(Left::load(left + i * Left::kNumBytes), Right::load(right + i * Right::kNumBytes));
    Output::store(output + i * Output::kNumBytes, result);
  }
  if (remainder == 0) return;
  const Tail<Left> left_tail(left + end * Left::kNumBytes, remainder);
  const Tail<Right> right_tail(right + end * Right::kNumBytes, remainder);
  Tail<Output> output_tail;
  Output::store(output_tail.bytes, apply<kOperator>(Left::load(left_tail.bytes), Right::load(right_tail.bytes)));
  output_tail.copy_to(output + end * Output::kNumBytes, remainder);
}

enum class Step { kConvert, kMultiply, kDivide };

template <Step kStep, typename V, typename Value>
inline V apply(V value, Value argument) {
  if constexpr (kStep == Step::kConvert) return value;
  if constexpr (kStep == Step::kMultiply) return value * argument;
  if constexpr (kStep == Step::kDivide) return value / argument;
}

template <typename Output, typename Input, typename Function>
inline void transform(std::byte* output, const std::byte* input, size_t num_scalars, Function function) {
  constexpr size_t kLanes = kVectorBytes / sizeof(typename Output::Value);
  const size_t remainder = num_scalars % kLanes;
  const size_t end = num_scalars - remainder;
#pragma GCC unroll 4
  for (size_t i = 0; i < end; i += kLanes) {
    Output::store(output + i * Output::kNumBytes, function(Input::load(input + i * Input::kNumBytes)));
  }
  if (remainder == 0) return;
  const Tail<Input> input_tail(input + end * Input::kNumBytes, remainder);
  Tail<Output> output_tail;
  Output::store(output_tail.bytes, function(Input::load(input_tail.bytes)));
  output_tail.copy_to(output + end * Output::kNumBytes, remainder);
}

template <typename Output, typename Input, Step kStep>
void map(std::byte* output, const std::byte* input, size_t num_scalars, double argument) {
  const auto operand = static_cast<typename Output::Value>(argument);
  transform<Output, Input>(output, input, num_scalars, [=](auto values) { return apply<kStep>(values, operand); });
}

template <typename T>
void divide_integers(std::byte* output, const std::byte* input, size_t num_scalars, double argument) {
  using Unsigned = std::make_unsigned_t<T>;
  const auto num_ranks = static_cast<uint32_t>(argument);
  if (num_ranks > std::numeric_limits<Unsigned>::max()) {  // every sum is less than that
    std::memset(output, 0, num_scalars * sizeof(T));
    return;
  }
  const Divisor<Unsigned> divisor(num_ranks);
  transform<Plain<T>, Plain<T>>(output, input, num_scalars, [&](Vector<T> sums) { return divide<T>(sums, divisor); });
}

template <typename Output, typename Left, typename Right>
constexpr ReduceKernels arithmetic_reductions() {
  return {reduce_scalars<Output, Left, Right, Operator::kSum>, reduce_scalars<Output, Left, Right, Operator::kProduct>,
          reduce_scalars<Output, Left, Right, Operator::kMin>, reduce_scalars<Output, Left, Right, Operator::kMax>};
}

// Sums and products are taken in the unsigned type, where overflow is defined.
template <typename T>
constexpr TypeKernels integer_kernels() {
  using Signed = Plain<T>;
  using Unsigned = Plain<std::make_unsigned_t<T>>;
  const ReduceKernels reductions{reduce_scalars<Unsigned, Unsigned, Unsigned, Operator::kSum>,
                                 reduce_scalars<Unsigned, Unsigned, Unsigned, Operator::kProduct>,
                                 reduce_scalars<Signed, Signed, Signed, Operator::kMin>,
                                 reduce_scalars<Signed, Signed, Signed, Operator::kMax>,
                                 reduce_scalars<Unsigned, Unsigned, Unsigned, Operator::kAnd>,
                                 reduce_scalars<Unsigned, Unsigned, Unsigned, Operator::kOr>,
                                 reduce_scalars<Unsigned, Unsigned, Unsigned, Operator::kXor>};
  return {.reduce_stored = reductions,
          .reduce_next = reductions,
          .reduce_partial = reductions,
          .divide = divide_integers<T>};
}

constexpr TypeKernels bool_kernels() {
  using Byte = Plain<uint8_t>;
  constexpr ReduceKernel kBoth = reduce_scalars<Byte, Byte, Byte, Operator::kAnd>;
  constexpr ReduceKernel kEither = reduce_scalars<Byte, Byte, Byte, Operator::kOr>;
  constexpr ReduceKernel kOne = reduce_scalars<Byte, Byte, Byte, Operator::kXor>;
  const ReduceKernels reductions{kEither, kBoth, kBoth, kEither, kBoth, kEither, kOne};
  return {.reduce_stored = reductions, .reduce_next = reductions, .reduce_partial = reductions};
}

template <typename T>
constexpr TypeKernels float_kernels() {
  using Float = Plain<T>;
  const ReduceKernels reductions = arithmetic_reductions<Float, Float, Float>();
  return {.reduce_stored = reductions,
          .reduce_next = reductions,
          .reduce_partial = reductions,
          .scale = map<Float, Float, Step::kMultiply>,
          .divide = map<Float, Float, Step::kDivide>};
}

template <typename Half>
constexpr TypeKernels half_kernels() {
  using Partial = Plain<float>;
  return {.reduce_stored = arithmetic_reductions<Half, Half, Half>(),
          .reduce_next = arithmetic_reductions<Partial, Partial, Half>(),
          .reduce_partial = arithmetic_reductions<Partial, Partial, Partial>(),
          .widen = map<Partial, Half, Step::kConvert>,
          .scale = map<Partial, Half, Step::kMultiply>,
          .narrow = map<Half, Partial, Step::kConvert>,
          .divide = map<Half, Partial, Step::kDivide>};
}

template <typename T>
constexpr TypeKernels complex_kernels() {
  TypeKernels kernels = float_kernels<T>();
  const ReduceKernels reductions{kernels.reduce_stored[static_cast<size_t>(Operator::kSum)]};
  kernels.reduce_stored = kernels.reduce_next = kernels.reduce_partial = reductions;
  kernels.num_scalars = 2;
  return kernels;
}

constexpr KernelTable make_table(const char* name) {
  return {.name = name,
          .types = {
              TypeKernels{},  // kByte is only moved
              bool_kernels(),
              integer_kernels<int8_t>(),
              integer_kernels<uint8_t>(),
              integer_kernels<int16_t>(),
              integer_kernels<uint16_t>(),
              integer_kernels<int32_t>(),
              integer_kernels<uint32_t>(),
              integer_kernels<int64_t>(),
              integer_kernels<uint64_t>(),
              half_kernels<Float16>(),
              half_kernels<BFloat16>(),
              float_kernels<float>(),
              float_kernels<double>(),
              complex_kernels<float>(),
              complex_kernels<double>(),
          }};
}

}  // namespace
}  // namespace axon::arithmetic
