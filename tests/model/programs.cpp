#include "programs.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace axon::model {
namespace {

#ifndef AXON_SEEDED

class Programs : public testing::TestWithParam<Program> {};

TEST_P(Programs, has_no_bad_schedule) {
  const Report report = explore(GetParam().limits, GetParam().run);
  EXPECT_EQ(report.failure, "") << "schedule " << testing::PrintToString(report.schedule);
  EXPECT_GT(report.num_schedules, 1000u);
  std::printf("%s: %lu schedules\n", GetParam().name, report.num_schedules);
}

INSTANTIATE_TEST_SUITE_P(Model, Programs, testing::ValuesIn(programs().begin(), programs().end()),
                         [](const auto& info) { return std::string(info.param.name); });

#else

TEST(SeededFault, is_found) {
  for (const Program& program : programs()) {
    const Report report = explore(program.limits, program.run);
    if (report.failure.empty()) continue;
    std::printf("%s, schedule %lu: %s\n", program.name, report.num_schedules, report.failure.c_str());
    return;
  }
  FAIL() << "no program has found it";
}

#endif

}  // namespace
}  // namespace axon::model
