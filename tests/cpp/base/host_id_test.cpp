#include "base/host_id.hpp"

#include <gtest/gtest.h>

#include "base/random.hpp"

namespace axon {
namespace {

TEST(HostId, is_the_same_at_each_call_while_random_numbers_differ) {
  EXPECT_EQ(this_host(), this_host());
  EXPECT_NE(this_host(), 0u);
  EXPECT_NE(random_number(), random_number());
}

}  // namespace
}  // namespace axon
