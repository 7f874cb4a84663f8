#include "base/config.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/log.hpp"
#include "base/scoped_variable.hpp"

namespace axon {
namespace {

TEST(Config, an_unset_variable_has_its_fallback) {
  EXPECT_FALSE(config::is_set("AXON_ALGO"));
  EXPECT_EQ(config::text("AXON_ALGO"), "");
  EXPECT_EQ(config::text("AXON_LOG"), "warn");
}

TEST(Config, the_environment_wins_over_the_fallback) {
  const ScopedVariable variable("AXON_ALGO", "all_reduce=ring");
  EXPECT_TRUE(config::is_set("AXON_ALGO"));
  EXPECT_EQ(config::text("AXON_ALGO"), "all_reduce=ring");
}

TEST(Config, a_bad_value_names_the_variable_the_value_and_what_is_allowed) {
  const ScopedVariable variable("AXON_LOG", "loud");
  const Status status = config::check_environment();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  for (const char* part : {"AXON_LOG", "loud", "error, warn, info or debug"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

TEST(Config, values_of_other_kinds_are_refused) {
  for (const auto& [name, value] :
       {std::pair{"AXON_ARENA_MB", ""}, std::pair{"AXON_ARENA_MB", "64MB"}, std::pair{"AXON_ARENA_MB", "-1"},
        std::pair{"AXON_ARENA_MB", "16385"}, std::pair{"AXON_TRANSPORTS", ""}, std::pair{"AXON_TRANSPORTS", "cuda"},
        std::pair{"AXON_TRANSPORTS", "ucx,nccl"}, std::pair{"AXON_TRANSPORTS", "ucx,"},
        std::pair{"AXON_TRANSPORTS", "ucx,ucx"}, std::pair{"AXON_TRANSPORTS", "auto,rails"},
        std::pair{"AXON_TRANSPORTS", "rings,cuda"}}) {
    const ScopedVariable variable(name, value);
    EXPECT_FALSE(config::check_environment().ok()) << name << "=" << value;
  }
  for (const auto& [name, value] : {std::pair{"AXON_ARENA_MB", "0"}, std::pair{"AXON_TRANSPORTS", "cuda,rings,ucx"},
                                    std::pair{"AXON_TRANSPORTS", "auto,rings"}, std::pair{"AXON_TRANSPORTS", "ucx"}}) {
    const ScopedVariable variable(name, value);
    EXPECT_TRUE(config::check_environment().ok()) << name << "=" << value;
  }
}

TEST(Config, an_unknown_name_is_found_and_no_error) {
  const ScopedVariable variable("AXON_LOGG", "info");
  EXPECT_TRUE(std::ranges::count(config::unknown_names(), "AXON_LOGG"));
  EXPECT_TRUE(config::check_environment().ok());
}

TEST(Config, variables_of_ucx_are_not_unknown) {
  const ScopedVariable variable("AXON_UCX_TLS", "tcp");
  EXPECT_FALSE(std::ranges::count(config::unknown_names(), "AXON_UCX_TLS"));
}

TEST(Config, variables_of_ucx_are_its_settings_but_where_it_is_installed) {
  const ScopedVariable tls("AXON_UCX_TLS", "tcp,self");
  const ScopedVariable root("AXON_UCX_ROOT", "/opt/ucx");
  const auto settings = config::ucx_settings();
  EXPECT_EQ(std::ranges::count(settings, std::pair<std::string, std::string>("TLS", "tcp,self")), 1);
  EXPECT_FALSE(std::ranges::count(settings, "ROOT", [](const auto& setting) { return setting.first; }));
}

TEST(Config, the_nearest_setting_is_a_small_edit_away) {
  ASSERT_NE(config::nearest("AXON_LGO"), nullptr);
  EXPECT_STREQ(config::nearest("AXON_LGO")->name, "AXON_LOG");
  ASSERT_NE(config::nearest("AXON_ALGOS"), nullptr);
  EXPECT_STREQ(config::nearest("AXON_ALGOS")->name, "AXON_ALGO");
  EXPECT_EQ(config::nearest("AXON_SOMETHING_ELSE_ENTIRELY"), nullptr);
}

TEST(Config, every_setting_is_described_and_accepts_its_own_fallback) {
  for (const config::Setting& setting : config::settings()) {
    EXPECT_TRUE(std::string_view(setting.name).starts_with("AXON_"));
    EXPECT_FALSE(std::string_view(setting.description).empty()) << setting.name;
    EXPECT_TRUE(setting.accepts == nullptr || setting.accepts(setting.fallback)) << setting.name;
  }
}

TEST(Log, levels_are_parsed_by_name) {
  EXPECT_EQ(log::parse("error"), log::Level::kError);
  EXPECT_EQ(log::parse("debug"), log::Level::kDebug);
  EXPECT_FALSE(log::parse("WARN").has_value());
}

TEST(Log, a_line_is_signed_and_below_the_limit_silent) {
  log::set_rank(3);
  log::set_rank(4);  // the rank of the first group is kept
  testing::internal::CaptureStderr();
  log::warn("something odd");
  log::info("chatter");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "axon[rank 3]: warn: something odd\n");
}

}  // namespace
}  // namespace axon
