// Tests that the kernel reduces the slots of several ranks as the host does.
#include "kernels/reduce_slots.hpp"

#include "kernels/reference.hpp"

namespace axon::testing {
namespace {

struct Case {
  size_t num_elements;
  int num_slots;
  DataType dtype = DataType::kBFloat16;
  Reduction reduction = Reduction::kSum;
};

class ReduceSlots : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "needs a GPU";
  }

  void check(const Case& what) {
    const cuda::DeviceGuard guard(0);
    const cuda::Stream stream = require(cuda::Stream::create());
    const size_t num_bytes = what.num_elements * size_of(what.dtype), slot_bytes = (num_bytes + 255) / 256 * 256;
    const DeviceBuffer slots(what.num_slots * slot_bytes), output(num_bytes);
    std::vector<Bytes> inputs;
    for (int slot = 0; slot < what.num_slots; ++slot) {
      inputs.push_back(draw(what.dtype, what.num_elements, random_));
      slots.upload(inputs[slot], slot * slot_bytes);
    }
    require(kernels::reduce_slots({.slots = slots.data(),
                                   .slot_bytes = slot_bytes,
                                   .num_slots = what.num_slots,
                                   .output = output.data(),
                                   .num_elements = what.num_elements,
                                   .dtype = what.dtype,
                                   .reduction = what.reduction},
                                  stream));
    require(stream.view().synchronize());
    output.expect_contents(reduced(what.dtype, what.reduction, inputs),
                           std::to_string(what.num_elements) + " of " + name_of(what.dtype));
  }

  std::mt19937 random_{20261122};
};

TEST_F(ReduceSlots, all_sizes) {
  for (const size_t num_elements : {0, 1, 7, 8, 9, 4095, 16'384, 16'385, 1'000'003}) {
    for (const int num_slots : {2, 3, 4, 8}) check({num_elements, num_slots});
  }
}

TEST_F(ReduceSlots, all_types) {
  for (const DataType dtype : {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64,
                               DataType::kComplex64, DataType::kComplex128}) {
    for (const Reduction reduction : {Reduction::kSum, Reduction::kAverage}) check({10'001, 3, dtype, reduction});
  }
}

// One operand is in the output, at any alignment; the slots are in host memory.
TEST_F(ReduceSlots, an_own_operand_beside_slots_in_host_memory) {
  const cuda::DeviceGuard guard(0);
  const cuda::Stream stream = require(cuda::Stream::create());
  for (const size_t num_elements : {1, 7, 8, 9, 16'385, 1'000'003}) {
    for (const size_t misalignment : {0, 2, 4, 14}) {
      for (const int own_slot : {0, 1, 2}) {
        const size_t num_bytes = num_elements * 2, slot_bytes = (num_bytes + 63) / 64 * 64;
        const auto slots = require(cuda::PinnedMemory::allocate(3 * slot_bytes));
        const DeviceBuffer output(num_bytes, misalignment);
        std::vector<Bytes> inputs;
        for (int slot = 0; slot < 3; ++slot) {
          inputs.push_back(draw(DataType::kBFloat16, num_elements, random_));
          std::memcpy(slots.data() + slot * slot_bytes, inputs[slot].data(), num_bytes);
        }
        output.upload(inputs[own_slot]);
        std::memset(slots.data() + own_slot * slot_bytes, 0xFF, num_bytes);
        require(kernels::reduce_slots({.slots = slots.data(),
                                       .slot_bytes = slot_bytes,
                                       .num_slots = 3,
                                       .own = output.data(),
                                       .own_slot = own_slot,
                                       .output = output.data(),
                                       .num_elements = num_elements,
                                       .dtype = DataType::kBFloat16,
                                       .reduction = Reduction::kAverage,
                                       .divisor = 3,
                                       .most_blocks = 16},
                                      stream));
        require(stream.view().synchronize());
        output.expect_contents(reduced(DataType::kBFloat16, Reduction::kAverage, inputs),
                               std::to_string(num_elements) + " elements, own slot " + std::to_string(own_slot));
      }
    }
  }
}

TEST_F(ReduceSlots, a_long_one_goes_around_the_grid) {
  check({size_t{20} << 20, 4});
}

TEST(ReduceSlotsArguments, refused_before_any_launch) {
  const cuda::StreamView none(nullptr);
  EXPECT_EQ(kernels::reduce_slots({.num_elements = 1, .dtype = DataType::kInt32}, none).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(kernels::reduce_slots({.num_elements = 1, .dtype = DataType::kFloat32, .reduction = Reduction::kMax}, none)
                .code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace axon::testing
