// Memory of a pool is returned and reused while its source makes or frees other memory, however long that takes.
#include "rpc/core/pools/memory_pool.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

constexpr size_t kPage = MemoryPool::kPage;

// Memory that calls a function before it is freed.
class Watched {
 public:
  Watched(size_t num_bytes, std::function<void()> before_freed)
      : bytes_(num_bytes), before_freed_(std::move(before_freed)) {}
  ~Watched() { before_freed_(); }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  static PoolMemory make(size_t num_bytes, std::function<void()> before_freed) {
    auto watched = std::make_shared<Watched>(num_bytes, std::move(before_freed));
    return {watched->bytes_, Owner::of(watched)};
  }

 private:
  std::vector<std::byte> bytes_;
  std::function<void()> before_freed_;
};

class MemoryPoolTest : public testing::Test {
 protected:
  ~MemoryPoolTest() override {
    for (std::thread& thread : threads_) thread.join();
  }

  // Expects that another thread can do this meanwhile.
  void expect_to_end(std::function<void()> function) {
    std::packaged_task<void()> task(std::move(function));
    const std::future<void> ended = task.get_future();
    threads_.emplace_back(std::move(task));
    EXPECT_EQ(ended.wait_for(10s), std::future_status::ready);
  }

  std::vector<std::thread> threads_;
};

TEST_F(MemoryPoolTest, others_return_and_reuse_memory_while_some_is_made_or_freed) {
  size_t num_made = 0;
  size_t num_freed = 0;
  std::shared_ptr<MemoryPool> pool;
  PoolMemory first;
  const auto reuse_first = [&] {
    first = PoolMemory();
    first = pool->take(2 * kPage);
  };
  const auto on_freed = [&] {
    ++num_freed;
    if (num_freed == 1) expect_to_end(reuse_first);
  };
  pool = std::make_shared<MemoryPool>(10 * kPage, [&](size_t num_bytes) {
    ++num_made;
    if (num_made > 1) expect_to_end(reuse_first);
    return Watched::make(num_bytes, on_freed);
  });
  first = pool->take(2 * kPage);
  EXPECT_FALSE(pool->take(8 * kPage).bytes.empty());
  EXPECT_EQ(num_freed, 0U);
  const PoolMemory larger = pool->take(3 * kPage);  // in place of the one before
  EXPECT_FALSE(larger.bytes.empty());
  EXPECT_EQ(num_made, 3U);
  EXPECT_EQ(num_freed, 1U);
  EXPECT_EQ(pool->num_bytes(), 5 * kPage);
  EXPECT_EQ(pool->num_bytes_left(), 5 * kPage);
}

TEST_F(MemoryPoolTest, memory_that_could_not_be_made_does_not_count) {
  const auto pool = std::make_shared<MemoryPool>(
      10 * kPage, [](size_t) -> PoolMemory { throw std::runtime_error("cannot be pinned"); });
  for (int i = 0; i < 2; ++i) EXPECT_THROW(pool->take(10 * kPage), std::runtime_error);
  EXPECT_EQ(pool->num_bytes(), 0U);
  EXPECT_EQ(pool->num_bytes_left(), 10 * kPage);
}

}  // namespace
}  // namespace axon::rpc
