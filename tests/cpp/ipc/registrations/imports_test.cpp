#include "ipc/registrations/imports.hpp"

#include <gtest/gtest.h>

#include "ipc/registrations/fake_memory.hpp"

namespace axon::ipc {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kIncarnation = 7;

// The state of the peer's registrations in this process.
struct Here {
  std::map<uint32_t, const std::byte*> table;  // what kernels find
  std::set<uint32_t> mapped;
  std::vector<uint32_t> attempts;
  std::set<uint32_t> impossible;  // registrations that cannot be mapped
  bool has_ended = false;
};

class FakeMapped final : public MappedRegistration {
 public:
  FakeMapped(Here& here, const RegistrationRecord& record)
      : here_(here), number_(record.number), is_legacy_(record.extents.empty()), data_(record.legacy) {
    here_.mapped.insert(number_);
  }
  ~FakeMapped() override {
    EXPECT_FALSE(here_.table.contains(number_)) << "kernels find what is not mapped";
    here_.mapped.erase(number_);
  }
  std::byte* data() const noexcept override { return const_cast<std::byte*>(data_.data()); }
  bool waits_for_device() const noexcept override { return is_legacy_; }

 private:
  Here& here_;
  const uint32_t number_;
  const bool is_legacy_;
  const cuda::LegacyHandle data_;
};

class FakePeer final : public RegistrationPeer {
 public:
  FakePeer(Here& here, const testing::FakePeerMemory& memory) : here_(here), memory_(memory) {}

  Status read(uint64_t address, std::span<std::byte> bytes) const override { return memory_.read(address, bytes); }
  bool has_ended() const noexcept override { return here_.has_ended; }
  Result<std::unique_ptr<MappedRegistration>> map(const RegistrationRecord& record) const override {
    here_.attempts.push_back(record.number);
    if (here_.impossible.contains(record.number)) return Status(ErrorCode::kInternal, "already mapped");
    return std::unique_ptr<MappedRegistration>(std::make_unique<FakeMapped>(here_, record));
  }
  Status enter(uint32_t number, std::span<std::byte> memory) override {
    here_.table[number] = memory.data();
    return Status();
  }
  Status remove(uint32_t number) override {
    here_.table.erase(number);
    return Status();
  }

 private:
  Here& here_;
  const testing::FakePeerMemory& memory_;
};

class ImportsOf : public ::testing::Test {
 protected:
  void TearDown() override { here_.table.clear(); }

  static RegistrationRecord legacy(uint32_t number) {
    return {.number = number, .num_bytes = kMiB, .extents = {}, .legacy = {}};
  }
  static RegistrationRecord run(uint32_t number) {
    return {.number = number, .num_bytes = 2 * kMiB, .extents = {{3, 2 * kMiB}}, .legacy = {}};
  }
  void publish(const std::vector<RegistrationRecord>& records) { export_table_.publish(encode(records)); }
  std::set<uint32_t> found() const {
    std::set<uint32_t> numbers;
    for (const auto& [number, base] : here_.table) numbers.insert(number);
    return numbers;
  }
  using Numbers = std::set<uint32_t>;

  Here here_;
  testing::FakePeerMemory memory_;
  ExportTable export_table_{kIncarnation};
  std::vector<std::unique_ptr<MappedRegistration>> retired_;
  Imports imports_{std::make_unique<FakePeer>(here_, memory_),
                   {.address = export_table_.address(), .incarnation = kIncarnation},
                   Imports::Clock::duration::zero()};
};

TEST_F(ImportsOf, what_is_published_is_mapped) {
  publish({legacy(1), run(2)});
  imports_.look();
  EXPECT_EQ(found(), (Numbers{1, 2}));
  publish({legacy(1), run(2), legacy(3)});
  imports_.look();
  EXPECT_EQ(found(), (Numbers{1, 2, 3}));
  EXPECT_EQ(here_.attempts, (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(imports_.num_mapped(), 3u);
}

TEST_F(ImportsOf, an_export_table_that_does_not_change_costs_one_read) {
  publish({legacy(1)});
  imports_.look();
  memory_.num_reads = 0;
  imports_.look();
  EXPECT_EQ(memory_.num_reads, 1);
}

TEST_F(ImportsOf, what_is_dropped_is_unmapped_or_retired) {
  publish({legacy(1), run(2), legacy(3)});
  imports_.look();
  publish({legacy(3)});
  imports_.look();
  EXPECT_EQ(found(), (Numbers{3}));
  EXPECT_EQ(here_.mapped, (Numbers{1, 2, 3}));
  imports_.look();
  EXPECT_EQ(here_.mapped, (Numbers{1, 3}));
  retired_ = imports_.take_retired();
  EXPECT_EQ(retired_.size(), 1u);
  EXPECT_TRUE(imports_.take_retired().empty());
  retired_.clear();
  EXPECT_EQ(here_.mapped, (Numbers{3}));
}

TEST_F(ImportsOf, what_is_dropped_lingers_where_kernels_may_have_found_it) {
  Imports imports(std::make_unique<FakePeer>(here_, memory_),
                  {.address = export_table_.address(), .incarnation = kIncarnation}, std::chrono::hours(1));
  publish({run(1), run(2)});
  imports.look();
  publish({run(2)});
  imports.look();
  imports.look();
  EXPECT_EQ(found(), (Numbers{2}));
  EXPECT_EQ(here_.mapped, (Numbers{1, 2}));
  EXPECT_EQ(imports.num_mapped(), 2u);
  here_.has_ended = true;
  imports.look();
  EXPECT_EQ(imports.num_mapped(), 0u);
  EXPECT_EQ(imports.take_retired().size(), 2u);
}

TEST_F(ImportsOf, what_cannot_be_mapped_is_tried_again_when_something_was_closed) {
  here_.impossible = {2};
  publish({legacy(1), legacy(2)});
  imports_.look();
  publish({legacy(1), legacy(2), legacy(3)});
  imports_.look();
  EXPECT_EQ(found(), (Numbers{1, 3}));
  EXPECT_EQ(here_.attempts, (std::vector<uint32_t>{1, 2, 3}));
  here_.impossible.clear();
  imports_.retry();
  imports_.look();
  EXPECT_EQ(found(), (Numbers{1, 2, 3}));
}

// Between reading the export table and checking that it is unchanged, its descriptor may be reused for another
// registration.
TEST_F(ImportsOf, what_is_dropped_while_it_is_mapped_is_not_found) {
  for (const RegistrationRecord& going : {run(2), legacy(2)}) {
    publish({legacy(1), going});
    memory_.before_read = [&] {
      if (!here_.attempts.empty() && here_.attempts.back() == 2) publish({legacy(1)});
    };
    imports_.look();
    memory_.before_read = nullptr;
    imports_.look();
    EXPECT_EQ(found(), (Numbers{1}));
    retired_ = imports_.take_retired();
    EXPECT_EQ(retired_.size(), going.extents.empty() ? 1u : 0u);
    retired_.clear();
    EXPECT_EQ(here_.mapped, (Numbers{1}));
    here_.attempts.clear();
  }
}

TEST_F(ImportsOf, what_is_published_while_others_are_mapped_is_mapped_too) {
  publish({run(1)});
  bool is_news = true;
  memory_.before_read = [&] {
    if (!here_.attempts.empty() && std::exchange(is_news, false)) publish({run(1), run(2)});
  };
  imports_.look();
  memory_.before_read = nullptr;
  imports_.look();
  EXPECT_EQ(found(), (Numbers{1, 2}));
  EXPECT_EQ(here_.attempts, (std::vector<uint32_t>{1, 2}));
}

TEST_F(ImportsOf, an_export_table_that_always_changes_is_left_for_later) {
  memory_.before_read = [&] { publish({run(1)}); };
  imports_.look();
  EXPECT_TRUE(found().empty());
  memory_.before_read = nullptr;
  imports_.look();
  EXPECT_EQ(found(), (Numbers{1}));
}

TEST_F(ImportsOf, slots_change_their_owner) {
  publish({run(5)});
  imports_.look();
  publish({run(5 + cuda::kRegistrationSlots)});
  imports_.look();
  EXPECT_EQ(found(), (Numbers{5 + cuda::kRegistrationSlots}));
}

// A kernel of this process may still use the memory: a peer that dies frees nothing in order.
TEST_F(ImportsOf, all_of_a_peer_that_has_ended_is_retired) {
  publish({legacy(1), run(2)});
  imports_.look();
  EXPECT_FALSE(imports_.is_over());
  here_.has_ended = true;
  imports_.look();
  EXPECT_TRUE(imports_.is_over());
  EXPECT_TRUE(found().empty());
  EXPECT_EQ(here_.mapped, (Numbers{1, 2}));
  retired_ = imports_.take_retired();
  EXPECT_EQ(retired_.size(), 2u);
  retired_.clear();
}

// Another process may already have its process id.
TEST_F(ImportsOf, what_was_read_as_a_peer_ended_is_void) {
  publish({run(1)});
  memory_.before_read = [&] { here_.has_ended = !here_.attempts.empty(); };
  imports_.look();
  EXPECT_TRUE(imports_.is_over());
  EXPECT_TRUE(found().empty());
  retired_ = imports_.take_retired();
  retired_.clear();
}

TEST_F(ImportsOf, nonsense_changes_nothing) {
  publish({run(1)});
  imports_.look();
  export_table_.publish(std::vector<std::byte>(7));
  imports_.look();
  publish({legacy(0)});
  imports_.look();
  EXPECT_EQ(found(), (Numbers{1}));
  publish({run(1), run(2)});
  imports_.look();
  EXPECT_EQ(found(), (Numbers{1, 2}));
}

}  // namespace
}  // namespace axon::ipc
