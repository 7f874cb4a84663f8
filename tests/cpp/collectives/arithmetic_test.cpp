#include "collectives/arithmetic/arithmetic.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <random>

#include "collectives/arithmetic/kernels.hpp"
#include "collectives/arithmetic_reference.hpp"

namespace axon::collectives {
namespace {

using arithmetic::KernelTable;
using arithmetic::PlanKernels;
using reference::Bytes;

constexpr uint64_t kSeed = 20261121;
constexpr size_t kMostElements = 2500;  // several blocks of the wider types
constexpr size_t kMostOperands = 17;
const std::vector<size_t> kLengths{0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 1000, kMostElements};
const std::vector<size_t> kOperandCounts{1, 2, 3, 5, kMostOperands};

std::vector<ReductionPlan> defined_plans() {
  std::vector<ReductionPlan> plans;
  for (int dtype = 0; dtype < 16; ++dtype) {
    for (int reduction = 0; reduction < 10; ++reduction) {
      const ReductionPlan plan{.dtype = static_cast<DataType>(dtype),
                               .reduction = static_cast<Reduction>(reduction),
                               .num_ranks = 3,
                               .premul_factor = -0.3};
      if (check(plan).ok()) plans.push_back(plan);
    }
  }
  return plans;
}

std::string describe(const ReductionPlan& plan) {
  return std::string(name_of(plan.reduction)) + " of " + name_of(plan.dtype) + ", seed " + std::to_string(kSeed);
}

// Bytes at any alignment, surrounded by guard bytes that no kernel may touch.
class Fenced {
 public:
  Fenced(size_t num_bytes, size_t misalignment)
      : storage_(num_bytes + 2 * kMargin, kFence), first_(kMargin - misalignment), num_bytes_(num_bytes) {}
  Fenced(const Bytes& bytes, size_t num_bytes, size_t misalignment) : Fenced(num_bytes, misalignment) {
    if (num_bytes != 0) std::memcpy(data(), bytes.data(), num_bytes);
  }

  std::byte* data() { return storage_.data() + first_; }
  Buffer buffer() { return {data(), num_bytes_}; }
  Bytes bytes() { return {data(), data() + num_bytes_}; }
  bool is_intact() const {
    for (size_t i = 0; i < storage_.size(); ++i) {
      if ((i < first_ || i >= first_ + num_bytes_) && storage_[i] != kFence) return false;
    }
    return true;
  }

 private:
  static constexpr std::byte kFence{0xa5};
  static constexpr size_t kMargin = 64;
  Bytes storage_;
  size_t first_;
  size_t num_bytes_;
};

enum class Values { kSmallIntegers, kAnyBits };

template <typename C>
Bytes random_elements(Values values, std::mt19937_64& random) {
  using Stored = typename C::Stored;
  Bytes bytes(kMostElements * sizeof(Stored));
  const bool any_bits = values == Values::kAnyBits && !std::is_same_v<C, reference::BoolCodec>;
  for (size_t i = 0; i < kMostElements; ++i) {
    const std::array<uint64_t, 2> bits{random(), random()};
    const Stored integer = C::encode(static_cast<typename C::Accumulator>(static_cast<int>(bits[0] % 17) - 8));
    std::memcpy(bytes.data() + i * sizeof(Stored), any_bits ? static_cast<const void*>(&bits) : &integer,
                sizeof(Stored));
  }
  return bytes;
}

std::vector<Bytes> random_operands(DataType dtype, Values values) {
  std::mt19937_64 random(kSeed);
  std::vector<Bytes> operands;
  for (size_t k = 0; k < kMostOperands; ++k) {
    operands.push_back(reference::with_codec(dtype, [&]<typename C>(C) { return random_elements<C>(values, random); }));
  }
  return operands;
}

// Each test runs with every instruction set of this processor.
class ArithmeticTest : public testing::TestWithParam<const arithmetic::KernelTable*> {
 protected:
  static arithmetic::PlanKernels kernels(const ReductionPlan& plan) {
    return arithmetic::kernels_of(*GetParam(), plan);
  }
};

INSTANTIATE_TEST_SUITE_P(InstructionSets, ArithmeticTest,
                         testing::ValuesIn(arithmetic::usable_tables().begin(), arithmetic::usable_tables().end()),
                         [](const auto& info) { return info.param->name; });

// Copies of the first operands, truncated to a length, each at a different alignment.
struct Placed {
  Placed(const std::vector<Bytes>& operands, size_t num_operands, size_t num_bytes, size_t misalignment) {
    for (size_t k = 0; k < num_operands; ++k) memory.emplace_back(operands[k], num_bytes, misalignment * (k + 1) % 64);
    for (Fenced& fenced : memory) buffers.push_back(fenced.buffer());
  }
  std::vector<Fenced> memory;
  std::vector<ConstBuffer> buffers;
};

void expect_prefix(const ReductionPlan& plan, const Bytes& actual, const Bytes& expected, const std::string& where) {
  const Bytes prefix(expected.begin(), expected.begin() + static_cast<ptrdiff_t>(actual.size()));
  EXPECT_EQ(reference::first_difference(plan.dtype, actual, prefix), actual.size() / size_of(plan.dtype))
      << describe(plan) << ", " << where;
}

void check_lengths(const arithmetic::PlanKernels& kernels, const ReductionPlan& plan,
                   const std::vector<Bytes>& operands, size_t num_operands) {
  const Bytes expected = reference::combine(plan, operands, num_operands);
  for (const size_t length : kLengths) {
    for (const size_t misalignment : {0, 3}) {
      const size_t num_bytes = length * size_of(plan.dtype);
      const Placed placed(operands, num_operands, num_bytes, misalignment);
      Fenced output(num_bytes, misalignment);
      arithmetic::combine(kernels, output.data(), placed.buffers, length);
      EXPECT_TRUE(output.is_intact()) << describe(plan);
      expect_prefix(plan, output.bytes(), expected,
                    std::to_string(num_operands) + " operands of " + std::to_string(length) + " elements at offset " +
                        std::to_string(misalignment));
    }
  }
}

TEST_P(ArithmeticTest, combine_equals_the_scalar_reference) {
  for (const ReductionPlan& plan : defined_plans()) {
    for (const Values values : {Values::kSmallIntegers, Values::kAnyBits}) {
      const std::vector<Bytes> operands = random_operands(plan.dtype, values);
      for (const size_t num_operands : kOperandCounts) check_lengths(kernels(plan), plan, operands, num_operands);
    }
  }
}

TEST_P(ArithmeticTest, combine_writes_over_any_operand) {
  for (const ReductionPlan& plan : defined_plans()) {
    const std::vector<Bytes> operands = random_operands(plan.dtype, Values::kSmallIntegers);
    for (const size_t num_operands : {1, 2, 3, 5}) {
      const Bytes expected = reference::combine(plan, operands, num_operands);
      for (size_t target = 0; target < num_operands; ++target) {
        Placed placed(operands, num_operands, expected.size(), 1);
        arithmetic::combine(kernels(plan), placed.memory[target].data(), placed.buffers, kMostElements);
        expect_prefix(plan, placed.memory[target].bytes(), expected, "over operand " + std::to_string(target));
      }
    }
  }
}

TEST_P(ArithmeticTest, steps_yield_what_combine_does) {
  for (const ReductionPlan& plan : defined_plans()) {
    const std::vector<Bytes> operands = random_operands(plan.dtype, Values::kAnyBits);
    const Bytes expected = reference::combine(plan, operands, 3);
    const size_t num_partial_bytes = kMostElements * size_of(partial_type(plan.dtype));
    Fenced partial(num_partial_bytes, 3), other(num_partial_bytes, 5), output(expected.size(), 1);
    arithmetic::begin_partial(kernels(plan), partial.data(), operands[0].data(), kMostElements);
    arithmetic::add_own_to_partial(kernels(plan), partial.data(), operands[1].data(), kMostElements);
    arithmetic::begin_partial(kernels(plan), other.data(), operands[2].data(), kMostElements);
    arithmetic::add_to_partial(kernels(plan), partial.data(), other.data(), kMostElements);
    arithmetic::finish_partial(kernels(plan), output.data(), partial.data(), kMostElements);
    EXPECT_TRUE(partial.is_intact() && other.is_intact() && output.is_intact()) << describe(plan);
    expect_prefix(plan, output.bytes(), expected, "in steps");
  }
}

template <typename C>
void check_widening(const arithmetic::PlanKernels& kernels) {
  std::vector<uint16_t> stored(1 << 16);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<uint16_t>(i);
  std::vector<float> widened(stored.size());
  kernels.begin(reinterpret_cast<std::byte*>(widened.data()), reinterpret_cast<std::byte*>(stored.data()),
                stored.size(), 0);
  for (size_t i = 0; i < stored.size(); ++i) {
    ASSERT_TRUE(reference::same(widened[i], C::decode(stored[i]))) << "of bits " << i;
  }
}

template <typename C>
void check_narrowing(const arithmetic::PlanKernels& kernels) {
  std::mt19937_64 random(kSeed);
  std::vector<float> values;
  for (uint32_t i = 0; i < 1 << 16; ++i) {
    // Every stored value, its neighbours in float, and the midpoint to the next value, which is a tie.
    const uint32_t bits = std::bit_cast<uint32_t>(C::decode(static_cast<uint16_t>(i)));
    const uint32_t tie =
        std::bit_cast<uint32_t>((C::decode(static_cast<uint16_t>(i)) + C::decode(static_cast<uint16_t>(i + 1))) / 2);
    for (const uint32_t center : {bits, tie}) {
      for (const uint32_t step : {0u, 1u, ~0u}) values.push_back(std::bit_cast<float>(center + step));
    }
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  }
  std::vector<uint16_t> narrowed(values.size());
  kernels.finish(reinterpret_cast<std::byte*>(narrowed.data()), reinterpret_cast<std::byte*>(values.data()),
                 values.size(), 0);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(reference::same(C::decode(narrowed[i]), C::decode(C::encode(values[i]))))
        << "of bits " << std::bit_cast<uint32_t>(values[i]);
  }
}

TEST_P(ArithmeticTest, halves_widen_and_narrow_exactly) {
  const arithmetic::PlanKernels float16 = kernels({.dtype = DataType::kFloat16, .reduction = Reduction::kSum});
  check_widening<reference::Float16Codec>(float16);
  check_narrowing<reference::Float16Codec>(float16);
  const arithmetic::PlanKernels bfloat16 = kernels({.dtype = DataType::kBFloat16, .reduction = Reduction::kSum});
  check_widening<reference::BFloat16Codec>(bfloat16);
  check_narrowing<reference::BFloat16Codec>(bfloat16);
}

// Hard cases for a divisor: the limits, and both neighbours of its multiples. The rest is random.
template <typename T>
std::vector<T> dividends(uint64_t divisor, std::mt19937_64& random) {
  const uint64_t bases[]{0,
                         static_cast<uint64_t>(std::numeric_limits<T>::min()),
                         std::numeric_limits<T>::max(),
                         divisor,
                         random() / divisor * divisor,
                         std::numeric_limits<T>::max() / divisor * divisor};
  std::vector<T> values;
  for (const uint64_t base : bases) {
    for (uint64_t step = 0; step < 5; ++step) {
      values.push_back(static_cast<T>(base + step - 2));
      values.push_back(static_cast<T>(uint64_t{0} - static_cast<uint64_t>(values.back())));
    }
  }
  for (int i = 0; i < 200; ++i) values.push_back(static_cast<T>(random()));
  return values;
}

template <typename T>
void check_quotients(const arithmetic::PlanKernels& kernels, int num_ranks, const std::vector<T>& values) {
  std::vector<T> quotients(values.size());
  kernels.finish(reinterpret_cast<std::byte*>(quotients.data()), reinterpret_cast<const std::byte*>(values.data()),
                 values.size(), num_ranks);
  for (size_t i = 0; i < values.size(); ++i) {
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    const T expected = static_cast<T>(static_cast<Wide>(values[i]) / static_cast<Wide>(num_ranks));
    ASSERT_EQ(quotients[i], expected) << +values[i] << " / " << num_ranks << ", seed " << kSeed;
  }
}

std::vector<int> divisors(std::mt19937_64& random) {
  constexpr int kGreatest = std::numeric_limits<int>::max();
  std::vector<int> divisors{255, 256, 257, 641, 65535, 65536, 65537, 1 << 30, kGreatest - 1, kGreatest};
  for (int divisor = 1; divisor <= 130; ++divisor) divisors.push_back(divisor);
  for (int shift = 1; shift < 31; ++shift) {
    for (int i = 0; i < 5; ++i) divisors.push_back(static_cast<int>(random() % (2u << shift) | 1));
  }
  return divisors;
}

TEST_P(ArithmeticTest, integer_averages_are_exact_quotients) {
  std::mt19937_64 random(kSeed);
  for (const int divisor : divisors(random)) {
    const auto check_type = [&]<typename T>(DataType dtype, T) {
      const arithmetic::PlanKernels of_type =
          kernels({.dtype = dtype, .reduction = Reduction::kAverage, .num_ranks = divisor});
      check_quotients<T>(of_type, divisor, dividends<T>(static_cast<uint64_t>(divisor), random));
    };
    check_type(DataType::kInt8, int8_t{});
    check_type(DataType::kUint8, uint8_t{});
    check_type(DataType::kInt16, int16_t{});
    check_type(DataType::kUint16, uint16_t{});
    check_type(DataType::kInt32, int32_t{});
    check_type(DataType::kUint32, uint32_t{});
    check_type(DataType::kInt64, int64_t{});
    check_type(DataType::kUint64, uint64_t{});
  }
}

template <typename T>
void check_all_quotients(const arithmetic::PlanKernels& kernels, int most_ranks) {
  std::vector<T> all;
  for (int value = std::numeric_limits<T>::min(); value <= std::numeric_limits<T>::max(); ++value) {
    all.push_back(static_cast<T>(value));
  }
  for (int num_ranks = 1; num_ranks <= most_ranks; ++num_ranks) check_quotients<T>(kernels, num_ranks, all);
}

TEST_P(ArithmeticTest, narrow_averages_are_exact_for_every_sum) {
  check_all_quotients<int8_t>(kernels({DataType::kInt8, Reduction::kAverage}), 300);
  check_all_quotients<uint8_t>(kernels({DataType::kUint8, Reduction::kAverage}), 300);
  check_all_quotients<int16_t>(kernels({DataType::kInt16, Reduction::kAverage}), 100);
  check_all_quotients<uint16_t>(kernels({DataType::kUint16, Reduction::kAverage}), 100);
}

template <typename T>
std::vector<T> combined(const ReductionPlan& plan, const std::vector<std::vector<T>>& operands) {
  const size_t num_elements = operands[0].size();
  std::vector<T> output(num_elements);
  std::vector<ConstBuffer> buffers;
  for (const auto& operand : operands) {
    buffers.push_back({reinterpret_cast<const std::byte*>(operand.data()), num_elements * sizeof(T)});
  }
  combine(plan, {reinterpret_cast<std::byte*>(output.data()), num_elements * sizeof(T)}, buffers, num_elements);
  return output;
}

TEST(Arithmetic, halves_are_rounded_once) {
  // In float16, 2048 + 1 rounds to 2048, both times. In float32 both ones count.
  const std::vector<std::vector<uint16_t>> operands{{0x6800}, {0x3c00}, {0x3c00}};
  EXPECT_EQ(combined({DataType::kFloat16, Reduction::kSum}, operands), std::vector<uint16_t>{0x6801});
}

TEST(Arithmetic, half_average_does_not_overflow_on_the_way) {
  const std::vector<std::vector<uint16_t>> operands{{0x7bff}, {0x7bff}};  // the largest finite value
  EXPECT_EQ(combined({DataType::kFloat16, Reduction::kAverage, 2}, operands), std::vector<uint16_t>{0x7bff});
}

TEST(Arithmetic, integer_average_truncates_towards_zero) {
  const std::vector<std::vector<int32_t>> operands{{-3, 3, -7}, {-4, 4, 0}};
  EXPECT_EQ(combined({DataType::kInt32, Reduction::kAverage, 2}, operands), (std::vector<int32_t>{-3, 3, -3}));
}

TEST(Arithmetic, integer_average_is_exact_at_the_limits) {
  const int32_t least = std::numeric_limits<int32_t>::min(), greatest = std::numeric_limits<int32_t>::max();
  const std::vector<std::vector<int32_t>> operands{{least, greatest, greatest - 1}};
  EXPECT_EQ(combined({DataType::kInt32, Reduction::kAverage, greatest}, operands), (std::vector<int32_t>{-1, 1, 0}));
}

TEST(Arithmetic, a_nan_wins_in_min_and_max) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Reduction reduction : {Reduction::kMin, Reduction::kMax}) {
    const auto result = combined<float>({DataType::kFloat32, reduction}, {{nan, 1, 2}, {1, nan, 2}, {3, 3, 2}});
    EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[1]) && result[2] == 2);
  }
}

TEST(Arithmetic, undefined_reductions_are_refused_by_name) {
  const std::vector<ReductionPlan> undefined{
      {DataType::kFloat32, Reduction::kBitAnd}, {DataType::kBFloat16, Reduction::kBitXor},
      {DataType::kComplex64, Reduction::kMax},  {DataType::kComplex128, Reduction::kProduct},
      {DataType::kBool, Reduction::kAverage},   {DataType::kInt32, Reduction::kPremulSum},
      {DataType::kByte, Reduction::kSum},       {DataType::kFloat32, Reduction::kNone}};
  for (const ReductionPlan& plan : undefined) {
    const Status status = check(plan);
    ASSERT_FALSE(status.ok()) << describe(plan);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(status.message().find(name_of(plan.reduction)), std::string::npos);
    EXPECT_NE(status.message().find(name_of(plan.dtype)), std::string::npos);
  }
  EXPECT_FALSE(check({static_cast<DataType>(200), Reduction::kSum}).ok());
  EXPECT_FALSE(check({DataType::kFloat32, static_cast<Reduction>(200)}).ok());
  EXPECT_FALSE(check({DataType::kFloat32, Reduction::kSum, 0}).ok());
  EXPECT_EQ(defined_plans().size(), 1u * 7 + 8 * 8 + 4 * 6 + 2 * 3);
}

}  // namespace
}  // namespace axon::collectives
