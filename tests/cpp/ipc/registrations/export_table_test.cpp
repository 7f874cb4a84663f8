#include "ipc/registrations/export_table.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <set>

#include "ipc/peer_process.hpp"
#include "ipc/registrations/fake_memory.hpp"

namespace axon::ipc {
namespace {

constexpr uint64_t kIncarnation = 77;

std::vector<std::byte> bytes_of(size_t num_bytes, uint8_t value) {
  return std::vector<std::byte>(num_bytes, std::byte{value});
}

class ExportTables : public ::testing::Test {
 protected:
  std::optional<ExportTableContent> read() {
    Result<std::optional<ExportTableContent>> content = read_export_table(memory_, location());
    EXPECT_TRUE(content.ok());
    return content.ok() ? std::move(content).value() : std::nullopt;
  }
  ExportTableLocation location() const { return {.address = export_table_.address(), .incarnation = kIncarnation}; }
  ExportTableHeader& header() { return *reinterpret_cast<ExportTableHeader*>(export_table_.address()); }

  ExportTable export_table_{kIncarnation};
  testing::FakePeerMemory memory_;
};

TEST_F(ExportTables, are_empty_at_first) {
  const std::optional<ExportTableContent> content = read();
  ASSERT_TRUE(content);
  EXPECT_TRUE(content->bytes.empty());
}

TEST_F(ExportTables, show_what_was_published_last) {
  for (uint8_t value = 1; value < 5; ++value) {
    const uint64_t former = version_of(memory_, location()).value();
    export_table_.publish(bytes_of(value * 1000u, value));
    const std::optional<ExportTableContent> content = read();
    ASSERT_TRUE(content);
    EXPECT_EQ(content->bytes, bytes_of(value * 1000u, value));
    EXPECT_NE(content->version, former);
    EXPECT_EQ(content->version, version_of(memory_, location()).value());
  }
  export_table_.publish(bytes_of(kMostRecordBytes, 9));
  EXPECT_EQ(read()->bytes, bytes_of(kMostRecordBytes, 9));
}

// A publication happens between any two reads of a reader.
TEST_F(ExportTables, changes_while_it_is_read_are_seen) {
  export_table_.publish(bytes_of(100, 1));
  for (int changed_before = 2; changed_before <= 3; ++changed_before) {
    int num_reads = 0;
    memory_.before_read = [&] {
      if (++num_reads == changed_before) export_table_.publish(bytes_of(100, 2));
    };
    EXPECT_FALSE(read()) << changed_before;
    memory_.before_read = nullptr;
    EXPECT_TRUE(read());
  }
}

// The writer may have died in the middle.
TEST_F(ExportTables, being_written_they_have_no_content) {
  export_table_.publish(bytes_of(100, 1));
  ++header().version;
  memory_.num_reads = 0;
  EXPECT_FALSE(read());
  EXPECT_EQ(memory_.num_reads, 1);
}

TEST_F(ExportTables, of_others_are_refused) {
  EXPECT_FALSE(version_of(memory_, {.address = export_table_.address(), .incarnation = kIncarnation + 1}).ok());
  EXPECT_FALSE(read_export_table(memory_, {.address = export_table_.address(), .incarnation = kIncarnation + 1}).ok());
}

TEST_F(ExportTables, sizes_are_not_believed) {
  header().num_bytes = kMostRecordBytes + 1;
  EXPECT_FALSE(read_export_table(memory_, location()).ok());
  header().num_bytes = ~uint64_t{0};
  EXPECT_FALSE(read_export_table(memory_, location()).ok());
}

TEST_F(ExportTables, of_processes_that_are_gone_are_errors) {
  memory_.is_gone = true;
  EXPECT_FALSE(version_of(memory_, location()).ok());
  EXPECT_FALSE(read_export_table(memory_, location()).ok());
}

class OtherProcess final : public PeerMemory {
 public:
  explicit OtherProcess(PeerProcess process) : process_(std::move(process)) {}
  Status read(uint64_t address, std::span<std::byte> bytes) const override { return process_.read(address, bytes); }

 private:
  PeerProcess process_;
};

// A child publishes without a pause, at the address that its export table had before the fork.
TEST_F(ExportTables, are_never_seen_half_written) {
  export_table_.publish(bytes_of(1, 1));
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (uint8_t value = 1;; value = value % 50 + 1) export_table_.publish(bytes_of(value * 4000u, value));
  }
  Result<PeerProcess> process = PeerProcess::open(child);
  ASSERT_TRUE(process.ok()) << process.status().message();
  const OtherProcess other(std::move(process).value());
  int num_whole = 0;
  std::set<std::byte> values;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while ((num_whole < 100 || values.size() < 2) && std::chrono::steady_clock::now() < deadline) {
    Result<std::optional<ExportTableContent>> read = read_export_table(other, location());
    ASSERT_TRUE(read.ok()) << read.status().message();
    if (!read.value()) continue;
    const std::vector<std::byte>& bytes = read.value()->bytes;
    const auto value = static_cast<uint8_t>(bytes.front());
    ASSERT_TRUE(bytes == bytes_of(value * 4000u, value) || bytes == bytes_of(1, 1)) << bytes.size();
    values.insert(bytes.front());
    ++num_whole;
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_GT(num_whole, 0);
  EXPECT_GT(values.size(), 1u);
}

}  // namespace
}  // namespace axon::ipc
