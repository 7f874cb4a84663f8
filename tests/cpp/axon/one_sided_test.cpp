// One-sided transfers by the library's classes, between runtimes of this process.
#include "axon/one_sided.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "axon/connected_pair.hpp"
#include "comes_true.hpp"

namespace axon::library {
namespace {

std::vector<std::byte> bytes(size_t num_bytes, int value) {
  return std::vector<std::byte>(num_bytes, static_cast<std::byte>(value));
}

class OneSidedLibrary : public testing::Test {
 protected:
  Region expose(RegionOptions options = {.access = Access::kReadWrite, .name = "memory"}) {
    return pair_.server.expose(memory_, std::move(options)).value();
  }
  Remote open(const Region& region) { return pair_.to_server.open(region.handle({}).value(), 30s).value(); }
  static Status ended(Result<Transfer> transfer) {
    if (!transfer.ok()) return std::move(transfer.status());
    EXPECT_TRUE(transfer.value().wait(60s));
    return transfer.value().status().clone();
  }

  ConnectedPair pair_;
  std::vector<std::byte> memory_ = bytes(1 << 20, 1);
};

TEST_F(OneSidedLibrary, writes_are_read_again_and_notified_after_their_data) {
  Region region = expose();
  const Remote remote = open(region);
  EXPECT_EQ(remote.num_bytes(), memory_.size());
  EXPECT_EQ(remote.region(), "memory");
  EXPECT_EQ(remote.access(), Access::kReadWrite);
  const std::vector<std::byte> source = bytes(1000, 2);
  const Remote part = remote.slice(7, source.size()).value();
  const Status written = ended(pair_.to_server.write(part, source, {.notification = "written"}));
  ASSERT_TRUE(written.ok()) << written.message();
  const std::vector<Notification> taken = pair_.server.notifications(30s).value();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].tag, "written");
  EXPECT_EQ(taken[0].from.name(), "client");
  EXPECT_TRUE(std::equal(source.begin(), source.end(), memory_.begin() + 7));
  std::vector<std::byte> into(source.size() + 14);
  const Status read = ended(pair_.to_server.read(remote.slice(0, into.size()).value(), into));
  ASSERT_TRUE(read.ok()) << read.message();
  EXPECT_TRUE(std::equal(into.begin(), into.end(), memory_.begin()));
  EXPECT_TRUE(region.close(30s));
}

TEST_F(OneSidedLibrary, a_closed_region_is_denied_and_its_owner_released) {
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> gone = held;
  Region region = expose({.access = Access::kRead, .name = "memory", .owner = Owner::of(std::move(held))});
  const Remote remote = open(region);
  std::vector<std::byte> local(10);
  EXPECT_EQ(ended(pair_.to_server.write(remote.slice(0, 10).value(), local)).code(), ErrorCode::kAccessDenied);
  EXPECT_FALSE(gone.expired());
  EXPECT_TRUE(region.close(30s));
  EXPECT_TRUE(region.holders().empty());
  EXPECT_TRUE(comes_true([&] { return gone.expired(); }));
  EXPECT_EQ(ended(pair_.to_server.read(remote.slice(0, 10).value(), local)).code(), ErrorCode::kAccessDenied);
  EXPECT_EQ(pair_.to_server.open(region.handle({}).value(), 30s).status().code(), ErrorCode::kAccessDenied);
}

TEST_F(OneSidedLibrary, mappable_memory_is_exposed_as_other_memory_and_freed_after_the_close) {
  std::shared_ptr<MappableMemory> memory = MappableMemory::make(5000).value();
  const std::weak_ptr<MappableMemory> gone = memory;
  Region region =
      pair_.server
          .expose(memory->bytes(), {.access = Access::kReadWrite, .name = "mappable", .owner = Owner::of(memory)})
          .value();
  const Remote remote = open(region);
  EXPECT_STREQ(remote.path(), "memcpy");
  const std::vector<std::byte> source = bytes(5000, 2);
  ASSERT_TRUE(ended(pair_.to_server.write(remote, source)).ok());
  EXPECT_TRUE(std::ranges::equal(memory->bytes(), source));
  memory = nullptr;
  EXPECT_TRUE(region.close(30s));
  std::vector<std::byte> into(5000);
  EXPECT_EQ(ended(pair_.to_server.read(remote, into)).code(), ErrorCode::kAccessDenied);
  EXPECT_TRUE(comes_true([&] { return gone.expired(); }));
}

TEST_F(OneSidedLibrary, plans_move_blocks_by_their_numbers) {
  Region region = expose();
  const Remote remote = open(region);
  constexpr size_t kBlock = 1000;
  std::vector<std::byte> source;
  for (int i = 0; i < 8; ++i) source.insert(source.end(), kBlock, static_cast<std::byte>(10 + i));
  const Blocks here{.num_bytes = kBlock, .count = 8};
  const Blocks there{.num_bytes = kBlock, .count = 100, .offset = 3, .stride = kBlock + 5};
  const std::vector<int32_t> ids{7, 0, 3}, remote_ids{99, 1, 50};
  const Plan writing = pair_.to_server.plan_write(source, here, remote, there).value();
  ASSERT_TRUE(ended(writing.post(ids, remote_ids)).ok());
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t begin = 3 + static_cast<size_t>(remote_ids[i]) * (kBlock + 5);
    EXPECT_TRUE(std::all_of(&memory_[begin], &memory_[begin] + kBlock,
                            [&](std::byte each) { return each == static_cast<std::byte>(10 + ids[i]); }));
    EXPECT_EQ(memory_[begin + kBlock], std::byte{1});
  }
  std::vector<std::byte> into(source.size());
  const Plan reading = pair_.to_server.plan_read(into, here, remote, there).value();
  ASSERT_TRUE(ended(reading.post(ids, remote_ids)).ok());
  for (const int32_t id : ids) {
    EXPECT_EQ(into[static_cast<size_t>(id) * kBlock], static_cast<std::byte>(10 + id));
  }
  EXPECT_EQ(ended(reading.post(ids, {&remote_ids[0], 2})).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ended(reading.post({&remote_ids[0], 1}, {&ids[0], 1})).code(), ErrorCode::kInvalidArgument);
  const Blocks too_many{.num_bytes = kBlock, .count = 9};
  EXPECT_EQ(pair_.to_server.plan_read(into, too_many, remote, there).status().code(), ErrorCode::kInvalidArgument);
}

TEST_F(OneSidedLibrary, tables_list_blocks_of_any_length_in_several_memories) {
  Region region = expose();
  const std::vector<Remote> remotes{open(region).slice(0, 1000).value(), open(region).slice(5000, 1000).value()};
  const std::vector<std::byte> first = bytes(700, 2), second = bytes(700, 3);
  const std::vector<std::span<const std::byte>> sources{first, second};
  const std::vector<BlockRow> local{{.memory = 0, .offset = 0, .num_bytes = 700},
                                    {.memory = 1, .offset = 650, .num_bytes = 50},
                                    {.memory = 1, .offset = 700, .num_bytes = 0}};
  const std::vector<BlockRow> remote{{.memory = 1, .offset = 300, .num_bytes = 700},
                                     {.memory = 0, .offset = 1, .num_bytes = 50},
                                     {.memory = 0, .offset = 1000, .num_bytes = 0}};
  const Plan writing = pair_.to_server.plan_write(sources, local, remotes, remote).value();
  const std::vector<int32_t> ids{2, 1, 0};
  ASSERT_TRUE(ended(writing.post(ids, ids)).ok());
  std::vector<std::byte> expected = bytes(memory_.size(), 1);
  std::ranges::fill(std::span(expected).subspan(5300, 700), std::byte{2});
  std::ranges::fill(std::span(expected).subspan(1, 50), std::byte{3});
  EXPECT_EQ(memory_, expected);
  std::vector<std::byte> into(750);
  const std::vector<std::span<std::byte>> targets{std::span(into).first(700), std::span(into).last(50)};
  std::vector<BlockRow> here = local;
  here[1].offset = 0;
  here.pop_back();
  const Plan reading = pair_.to_server.plan_read(targets, here, remotes, remote).value();
  ASSERT_TRUE(ended(reading.post({&ids[1], 2}, {&ids[1], 2})).ok());
  EXPECT_TRUE(std::all_of(into.begin(), into.begin() + 700, [](std::byte each) { return each == std::byte{2}; }));
  EXPECT_TRUE(std::all_of(into.begin() + 700, into.end(), [](std::byte each) { return each == std::byte{3}; }));
  EXPECT_EQ(ended(reading.post({&ids[1], 1}, {&ids[2], 1})).code(), ErrorCode::kInvalidArgument);  // lengths differ
  here[0].num_bytes = 701;
  EXPECT_EQ(pair_.to_server.plan_read(targets, here, remotes, remote).status().code(), ErrorCode::kInvalidArgument);
  here[0].memory = 2;
  EXPECT_EQ(pair_.to_server.plan_read(targets, here, remotes, remote).status().code(), ErrorCode::kInvalidArgument);
}

TEST_F(OneSidedLibrary, wrong_arguments_start_nothing) {
  Region region = expose();
  const Remote remote = open(region);
  std::vector<std::byte> local(10);
  const auto code = [](const auto& result) { return result.status().code(); };
  EXPECT_EQ(code(remote.slice(memory_.size(), 1)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(remote.slice(1, UINT64_MAX)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(region.handle({.offset = 1, .num_bytes = memory_.size()})), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(pair_.to_server.read(remote, local)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(pair_.to_server.notify(std::string(65'537, 't'), 1s)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(pair_.to_server.open(Handle{}, 1s)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Peer(nullptr).open(Handle{}, 1s)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(Peer(nullptr).read(remote, local)), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(pair_.server.expose(memory_, {.name = std::string(256, 'n')})), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(pair_.server.notifications(0ms).value().empty());
}

TEST_F(OneSidedLibrary, transfers_that_were_moved_from_are_finished) {
  Transfer first = pair_.to_server.notify("tag", 30s).value();
  Transfer second = std::move(first);
  EXPECT_TRUE(first.wait(0ms) && first.finished() && first.released());
  EXPECT_EQ(first.status().code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(second.wait(60s));
  EXPECT_TRUE(second.status().ok());
}

TEST_F(OneSidedLibrary, the_end_of_a_runtime_ends_waits_and_exposes_nothing_more) {
  std::thread closing([&] {
    std::this_thread::sleep_for(20ms);
    pair_.server.close();
  });
  EXPECT_EQ(pair_.server.notifications(60s).status().code(), ErrorCode::kAborted);
  closing.join();
  EXPECT_EQ(pair_.server.expose(memory_, {}).status().code(), ErrorCode::kAborted);
}

}  // namespace
}  // namespace axon::library
