// Tests the status page: what a reader sees of calls while they are written, and of more than the page has room for.
#include "engine/status_page.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/engines.hpp"
#include "engine/status_reader.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

constexpr GroupFacts kFacts{.name = "some group", .identity = 7, .rank = 1, .size = 4, .num_on_host = 2};

// A call that is only shown: nothing starts it.
class ShownCall final : public Operation {
 public:
  ~ShownCall() override = default;

  // All numbers of the call are `number`, so that a reader can tell whether they are of one call.
  static std::unique_ptr<ShownCall> collective(uint32_t number) {
    auto call = std::make_unique<ShownCall>();
    call->arguments.kind = transport::OperationKind::kBroadcast;
    call->arguments.dtype = DataType::kInt32;
    call->arguments.root = static_cast<int>(number);
    call->shape = {.sizes = {number, number}, .num_dimensions = 2};
    call->Operation::number(number, nullptr);
    return call;
  }
  static std::unique_ptr<ShownCall> send(int destination) {
    auto call = std::make_unique<ShownCall>();
    call->arguments.kind = transport::OperationKind::kPointToPoint;
    call->direction = Direction::kSend;
    call->peer = destination;
    return call;
  }

 private:
  void on_released() noexcept override {}
};

class StatusPageTest : public testing::Test {
 protected:
  ProcessStatus read() const {
    Result<ProcessStatus> status = read_status(page_->descriptor());
    EXPECT_TRUE(status.ok()) << status.status().message();
    return status.ok() ? std::move(status).value() : ProcessStatus();
  }
  GroupSnapshot read_group() const {
    ProcessStatus status = read();
    EXPECT_EQ(status.groups.size(), 1u);
    return status.groups.empty() ? GroupSnapshot() : std::move(status.groups[0]);
  }

  std::shared_ptr<StatusPage> page_ = StatusPage::make();
};

TEST_F(StatusPageTest, shows_a_group_until_it_is_gone) {
  EXPECT_EQ(read().pid, getpid());
  EXPECT_TRUE(read().groups.empty());
  {
    const GroupStatus status(page_, kFacts);
    const GroupSnapshot group = read_group();
    EXPECT_EQ(group.name, "some group");
    EXPECT_EQ(group.identity, 7u);
    EXPECT_EQ(group.rank, 1);
    EXPECT_EQ(group.size, 4);
    EXPECT_EQ(group.num_on_host, 2);
    EXPECT_FALSE(group.latest || group.launched || group.message || group.captured);
    EXPECT_TRUE(group.running.empty() && group.failure.empty());
  }
  EXPECT_TRUE(read().groups.empty());
}

TEST_F(StatusPageTest, shows_the_latest_collective_also_after_its_end) {
  GroupStatus status(page_, kFacts);
  const auto call = ShownCall::collective(17);
  const StatusToken token = status.begin(*call);
  status.note_waiter(token, 4711);
  GroupSnapshot group = read_group();
  ASSERT_TRUE(group.latest.has_value());
  EXPECT_EQ(group.latest->text, "broadcast #17 (int32[17, 17], root 17)");
  EXPECT_EQ(group.latest->state, CallState::kRunning);
  EXPECT_EQ(group.latest->waiter, 4711u);
  EXPECT_TRUE(group.running.empty());
  status.end(token, true);
  EXPECT_EQ(read_group().latest->state, CallState::kFinished);
  const auto next = ShownCall::collective(18);
  status.end(status.begin(*next), false);
  group = read_group();
  EXPECT_EQ(group.latest->sequence, 18u);
  EXPECT_EQ(group.latest->state, CallState::kFailed);
  EXPECT_EQ(group.latest->waiter, 0u);  // that of the call before
}

TEST_F(StatusPageTest, a_waiter_that_comes_late_changes_nothing) {
  GroupStatus status(page_, kFacts);
  const StatusToken ended = status.begin(*ShownCall::collective(1));
  status.end(ended, true);
  const StatusToken token = status.begin(*ShownCall::collective(2));
  status.note_waiter(token, 5);
  status.note_waiter(ended, 6);
  EXPECT_EQ(read_group().latest->waiter, 5u);
}

TEST_F(StatusPageTest, lists_the_oldest_calls_and_the_latest_collective_and_counts_the_others) {
  GroupStatus status(page_, kFacts);
  constexpr size_t kNumSends = 20;
  std::vector<StatusToken> tokens;
  for (size_t i = 0; i < kNumSends; ++i) tokens.push_back(status.begin(*ShownCall::send(static_cast<int>(i))));
  GroupSnapshot group = read_group();
  EXPECT_EQ(group.running.size(), GroupSlot::kMostCalls);
  EXPECT_EQ(group.num_unlisted, kNumSends - GroupSlot::kMostCalls);
  EXPECT_EQ(group.running.back().text, "send to rank 7 (byte[], tag 0)");
  for (const uint32_t number : {1u, 2u, 3u}) tokens.push_back(status.begin(*ShownCall::collective(number)));
  group = read_group();
  ASSERT_TRUE(group.latest.has_value());
  EXPECT_EQ(group.latest->sequence, 3u);
  EXPECT_EQ(group.running.size() + 1 + group.num_unlisted, tokens.size());
  for (const StatusToken token : tokens) status.end(token, true);
  group = read_group();
  EXPECT_EQ(group.latest->sequence, 3u);
  EXPECT_EQ(group.num_unlisted, 0u);
  EXPECT_TRUE(group.running.empty());
}

TEST_F(StatusPageTest, counts_groups_that_it_has_no_room_for) {
  std::vector<std::unique_ptr<GroupStatus>> groups;
  for (size_t i = 0; i < StatusMemory::kMostGroups + 3; ++i) {
    groups.push_back(std::make_unique<GroupStatus>(page_, kFacts));
    groups.back()->end(groups.back()->begin(*ShownCall::collective(1)), true);
  }
  EXPECT_EQ(read().groups.size(), StatusMemory::kMostGroups);
  EXPECT_EQ(read().num_left_out, 3u);
  groups.erase(groups.begin(), groups.end() - 2);
  EXPECT_EQ(read().groups.size(), 0u);
  EXPECT_EQ(read().num_left_out, 2u);
  groups.back()->hide();
  EXPECT_EQ(read().num_left_out, 1u);  // although the hidden group's object is still there
  groups.clear();
  EXPECT_EQ(read().num_left_out, 0u);
  const GroupStatus again(page_, kFacts);
  EXPECT_FALSE(read_group().latest.has_value());  // nothing of the group that had the slot before
}

TEST_F(StatusPageTest, keeps_the_ends_of_texts_that_are_too_long) {
  const std::string long_name = std::string(200, 'x') + " the end";
  GroupStatus status(page_, {.name = long_name});
  auto call = ShownCall::collective(1);
  const std::string site = std::string(200, '/') + "train.py:12, in step";
  call->call_site = site;
  status.begin(*call);
  status.fail(std::string("the beginning") + std::string(600, '.'));
  status.fail("a later failure");
  const GroupSnapshot group = read_group();
  EXPECT_TRUE(group.name.ends_with("x the end")) << group.name;
  EXPECT_TRUE(group.latest->call_site.ends_with("/train.py:12, in step")) << group.latest->call_site;
  EXPECT_TRUE(group.failure.starts_with("the beginning")) << group.failure;
}

TEST_F(StatusPageTest, readers_see_no_torn_call) {
  GroupStatus status(page_, kFacts);
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    for (uint32_t number = 1; !is_over.load(); ++number) status.end(status.begin(*ShownCall::collective(number)), true);
  });
  uint32_t latest = 0;
  for (int round = 0; round < 3000; ++round) {
    const GroupSnapshot group = read_group();
    if (!group.latest) continue;
    const std::string number = std::to_string(group.latest->sequence);
    ASSERT_EQ(group.latest->text,
              "broadcast #" + number + " (int32[" + number + ", " + number + "], root " + number + ")");
    EXPECT_GE(group.latest->sequence, latest);
    latest = group.latest->sequence;
  }
  is_over.store(true);
  writer.join();
  EXPECT_GT(latest, 0u);
}

TEST_F(StatusPageTest, a_reader_does_not_wait_for_a_writer_that_has_stopped) {
  GroupStatus status(page_, kFacts);
  status.begin(*ShownCall::send(3));
  status.begin(*ShownCall::send(4));
  void* const data = mmap(nullptr, sizeof(StatusMemory), PROT_READ | PROT_WRITE, MAP_SHARED, page_->descriptor(), 0);
  ASSERT_NE(data, MAP_FAILED);
  static_cast<StatusMemory*>(data)->groups[0].calls[0].version.fetch_add(1);  // in the midst of a write
  const GroupSnapshot group = read_group();
  EXPECT_EQ(group.num_torn, 1u);
  ASSERT_EQ(group.running.size(), 1u);
  EXPECT_EQ(group.running[0].peer, 4);
  munmap(data, sizeof(StatusMemory));
}

TEST_F(StatusPageTest, shows_the_progress_of_gpus_and_counts_requests_for_it) {
  GroupStatus status(page_, kFacts);
  EXPECT_TRUE(read_group().progress.empty());
  EXPECT_EQ(status.num_requests(), 0u);
  ask_for_progress(page_->descriptor());
  EXPECT_EQ(status.num_requests(), 1u);
  const std::string long_call(200, 'x');
  const std::vector<DeviceProgress> ranks{{.rank = 1, .num_entered = 57, .call = {}},
                                          {.rank = 3, .num_entered = 58, .call = long_call}};
  const auto now = sync::Clock::now();
  status.note_progress(ranks, now);
  const GroupSnapshot group = read_group();
  ASSERT_EQ(group.progress.size(), 2u);
  EXPECT_EQ(group.progress[0].rank, 1);
  EXPECT_EQ(group.progress[0].num_entered, 57u);
  EXPECT_EQ(group.progress[0].call, "");
  EXPECT_EQ(group.progress[1].rank, 3);
  EXPECT_EQ(group.progress[1].call, long_call.substr(200 - 72));
  EXPECT_EQ(group.progress_read_at_ns, std::chrono::nanoseconds(now.time_since_epoch()).count());
  const std::vector<DeviceProgress> too_many(DeviceSlot::kMostRanks + 1);
  status.note_progress(too_many, now);
  EXPECT_EQ(read_group().progress.size(), DeviceSlot::kMostRanks);
}

TEST_F(StatusPageTest, a_later_group_does_not_show_the_progress_of_one_before) {
  const std::vector<DeviceProgress> ranks(2);
  std::make_unique<GroupStatus>(page_, kFacts)->note_progress(ranks, sync::Clock::now());
  const GroupStatus later(page_, kFacts);
  EXPECT_TRUE(read_group().progress.empty());
  EXPECT_EQ(read_group().progress_read_at_ns, 0);
}

TEST_F(StatusPageTest, other_memory_is_not_asked) {
  const FileDescriptor other(memfd_create(kStatusPageName, MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(other.get(), sizeof(StatusMemory)), 0);
  ask_for_progress(other.get());
  StatusHeader header{};
  ASSERT_EQ(pread(other.get(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  EXPECT_EQ(header.num_requests.load(), 0u);
}

TEST_F(StatusPageTest, refuses_other_memory_and_other_versions) {
  const FileDescriptor other(memfd_create(kStatusPageName, MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(other.get(), sizeof(StatusMemory)), 0);
  EXPECT_NE(read_status(other.get()).status().message().find("not a status page"), std::string::npos);
  StatusHeader header{};
  header.magic = kStatusMagic;
  header.version = kStatusVersion + 1;
  ASSERT_EQ(pwrite(other.get(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  EXPECT_NE(read_status(other.get()).status().message().find("another version"), std::string::npos);
}

TEST_F(StatusPageTest, a_forked_child_neither_has_nor_changes_it) {
  auto status = std::make_unique<GroupStatus>(page_, kFacts);
  const pid_t child = fork();
  if (child == 0) {
    const bool has_it = read_status(page_->descriptor()).ok();
    status.reset();
    _exit(has_it ? 1 : 0);
  }
  int outcome = 0;
  ASSERT_EQ(waitpid(child, &outcome, 0), child);
  EXPECT_TRUE(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0) << outcome;
  EXPECT_EQ(read_group().name, "some group");
}

TEST_F(StatusPageTest, writes_without_a_page_go_nowhere) {
  GroupStatus status(nullptr, kFacts);
  status.end(status.begin(*ShownCall::collective(1)), true);
  status.fail("a failure");
  EXPECT_EQ(status.latest().sequence, 1u);
}

TEST(StatusOfEnginesTest, shows_which_rank_has_not_entered_a_collective) {
  transport::LoopbackFabric fabric;
  Engines engines(loopback_transports(fabric, 2));
  auto group = engines.form("pair");
  auto first = TestOperation::all_reduce({1, 2}, 30s);
  group[0]->start(*first);
  const auto status_of = [&](size_t rank) {
    Result<ProcessStatus> status = read_status(engines[rank].status_page()->descriptor());
    EXPECT_EQ(status.value().groups.size(), 1u);
    return std::move(status.value().groups[0]);
  };
  const GroupSnapshot here = status_of(0);
  EXPECT_EQ(here.latest->text, "all_reduce #1 (int32[2], SUM)");
  EXPECT_EQ(here.latest->state, CallState::kRunning);
  const GroupSnapshot there = status_of(1);
  EXPECT_FALSE(there.latest.has_value());
  EXPECT_EQ(here.identity, there.identity);
  auto second = TestOperation::all_reduce({3, 4}, 30s);
  EXPECT_TRUE(run(*group[1], *second).ok());
  await_release(*second);
  EXPECT_TRUE(group[0]->wait(*first, sync::Clock::now() + 30s));
  await_release(*first);
  EXPECT_EQ(status_of(0).latest->state, CallState::kFinished);
  group[1]->abort("a test aborts it");
  EXPECT_NE(status_of(1).failure.find("a test aborts it"), std::string::npos);
  group[1].reset();
  EXPECT_TRUE(read_status(engines[1].status_page()->descriptor()).value().groups.empty());
}

}  // namespace
}  // namespace axon::engine
