#include "base/trace.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/file.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/file_descriptor.hpp"

namespace axon {
namespace {

class TraceTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(folder_); }
  void TearDown() override {
    trace::close();
    unsetenv("AXON_TRACE");
    std::filesystem::remove_all(folder_);
  }

  std::string in_folder(const std::string& name) const { return folder_ / name; }
  static std::string content(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  const std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("trace_test_" + std::to_string(getpid()));
};

TEST_F(TraceTest, each_rank_has_a_file_of_its_own) {
  EXPECT_EQ(trace::file_of("/tmp/trace.json", 3), "/tmp/trace.rank3.json");
  EXPECT_EQ(trace::file_of("/tmp/%r/trace.json", 3), "/tmp/3/trace.json");
  EXPECT_EQ(trace::file_of("/tmp.d/trace", 3), "/tmp.d/trace.rank3");
  EXPECT_EQ(trace::file_of(".trace", 3), ".trace.rank3");
}

TEST_F(TraceTest, nothing_is_written_unless_asked_for) {
  EXPECT_TRUE(trace::open(0).ok());
  EXPECT_FALSE(trace::is_on());
}

TEST_F(TraceTest, a_file_that_cannot_be_written_is_named) {
  setenv("AXON_TRACE", in_folder("none/trace.json").c_str(), 1);
  const Status opened = trace::open(2);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.message().find("none/trace.rank2.json' cannot be written: No such file"), std::string::npos)
      << opened.message();
  EXPECT_FALSE(trace::is_on());
}

TEST_F(TraceTest, replaces_a_file_that_no_process_writes_any_more) {
  setenv("AXON_TRACE", in_folder("trace.json").c_str(), 1);
  std::ofstream(in_folder("trace.rank0.json")) << std::string(1000, '?');
  ASSERT_TRUE(trace::open(0).ok());
  trace::close();
  EXPECT_EQ(content(in_folder("trace.rank0.json")).find('?'), std::string::npos);
}

TEST_F(TraceTest, leaves_a_file_alone_that_another_process_writes) {
  setenv("AXON_TRACE", in_folder("trace.json").c_str(), 1);
  const std::string theirs = in_folder("trace.rank0.json");
  std::ofstream(theirs) << "theirs";
  const FileDescriptor writer(::open(theirs.c_str(), O_WRONLY | O_CLOEXEC));
  ASSERT_EQ(flock(writer.get(), LOCK_EX), 0);
  ASSERT_TRUE(trace::open(0).ok());
  trace::close();
  EXPECT_EQ(content(theirs), "theirs");
  const std::string ours = content(in_folder("trace.rank0.pid" + std::to_string(getpid()) + ".json"));
  EXPECT_NE(ours.find("rank 0 (pid "), std::string::npos) << ours;
}

TEST_F(TraceTest, events_of_all_threads_come_whole_and_names_are_escaped) {
  setenv("AXON_TRACE", in_folder("trace.json").c_str(), 1);
  ASSERT_TRUE(trace::open(1).ok());
  const uint32_t track = trace::add_track("the \"tensor\" group\n");
  const auto write_many = [&] {
    for (int i = 0; i < 1000; ++i) {
      trace::write({.phase = trace::Phase::kBegin,
                    .name = "all_reduce",
                    .id = 7,
                    .track = track,
                    .at = std::chrono::steady_clock::now(),
                    .details = trace::Details().add("bytes", 12).add("call", "back\\slash")});
    }
  };
  std::thread other(write_many);
  write_many();
  other.join();
  trace::flush();
  EXPECT_NE(content(in_folder("trace.rank1.json")).find("group the \\\"tensor\\\" group "), std::string::npos);
  trace::close();
  EXPECT_FALSE(trace::is_on());
  std::istringstream lines(content(in_folder("trace.rank1.json")));
  size_t num_events = 0;
  std::string last;
  for (std::string line; std::getline(lines, line); last = line) {
    if (line.find(R"("ph":"b")") == std::string::npos) continue;
    ++num_events;
    EXPECT_TRUE(line.ends_with(R"("args":{"bytes":12,"call":"back\\slash"}},)")) << line;
  }
  EXPECT_EQ(num_events, 2000u);
  EXPECT_EQ(last, "]");
}

}  // namespace
}  // namespace axon
