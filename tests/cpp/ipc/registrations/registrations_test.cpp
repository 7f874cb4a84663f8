// Tests how memory of one process enters the tables of another, and how it is removed.
#include "ipc/registrations/registrations.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <optional>
#include <thread>

#include "gpu_comm/device_processes.hpp"
#include "ipc/arena.hpp"
#include "ipc/registrations/cache_thread.hpp"
#include "ipc/registrations/granules.hpp"

namespace axon::testing {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kBytes = 8 * kMiB;

// What two processes exchange.
struct Note {
  std::array<std::byte, ipc::DeviceAddress::kNumBytes> address;
  cuda::IpcLocation location;
};

bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// One of the two processes, with its view of the other.
class Side {
 public:
  Side(int rank, int device, transport::ProcessGroup& processes, Note* notes)
      : rank_(rank), device_(device), processes_(processes), notes_(notes) {
    require(cudaSetDevice(device));
    arena_ = require(ipc::Arena::of(device));
    notes_[rank].address = arena_->address_of(require(arena_->take())).encode();
    meet();
    table_ = require(arena_->view_of(require(ipc::DeviceAddress::decode(notes_[1 - rank].address))))->registrations();
  }

  int rank() const { return rank_; }
  int device() const { return device_; }
  ipc::Registrations& registrations() const { return arena_->registrations(); }
  ipc::LaunchLedger& launches() const { return arena_->launches(); }
  void meet() { processes_.barrier(rank_); }

  // Sends the location of a tensor of this side, and returns the peer's.
  cuda::IpcLocation swap(cuda::IpcLocation location) {
    notes_[rank_].location = location;
    meet();
    const cuda::IpcLocation theirs = notes_[1 - rank_].location;
    meet();
    return theirs;
  }
  cuda::IpcLocation swap(const std::byte* data, size_t num_bytes = kBytes) {
    const cuda::IpcLocation location = registrations().locate(data, num_bytes);
    EXPECT_NE(location.registration, 0u);
    return swap(location);
  }

  cuda::RegistrationEntry entry(uint64_t number) const {
    cuda::RegistrationEntry entry{};
    require(cudaMemcpy(&entry, &table_[number % cuda::kRegistrationSlots], sizeof entry, cudaMemcpyDeviceToHost));
    return entry;
  }
  bool has_closed_all() const {
    return comes_true([&] { return registrations().counts().num_retired == 0; });
  }
  bool finds(cuda::IpcLocation location) const {
    return entry(location.registration).registration == location.registration;
  }
  void expect_found(cuda::IpcLocation location) const {
    EXPECT_TRUE(comes_true([&] { return finds(location); })) << "registration " << location.registration;
  }
  void expect_gone(cuda::IpcLocation location) const {
    EXPECT_TRUE(comes_true([&] { return !finds(location); })) << "registration " << location.registration;
  }
  // Returns the byte at the other side's location, plus an offset.
  uint8_t look(cuda::IpcLocation location, size_t offset = 0) const {
    const std::byte* const there = entry(location.registration).base + location.offset + offset;
    uint8_t value = 0;
    require(cudaMemcpy(&value, there, 1, cudaMemcpyDeviceToHost));
    return value;
  }

 private:
  const int rank_;
  const int device_;
  transport::ProcessGroup& processes_;
  Note* const notes_;
  ipc::Arena* arena_ = nullptr;
  const cuda::RegistrationEntry* table_ = nullptr;
};

void fill(std::byte* data, size_t num_bytes, int value) {
  require(cudaMemset(data, value, num_bytes));
  require(cudaDeviceSynchronize());
}

class RegistrationsTest : public ForkedLayoutTest {
 protected:
  static void on_both_sides(const std::function<void(Side& side, transport::ProcessGroup& processes)>& body) {
    constexpr size_t kNotes = 2 * sizeof(Note);
    void* const page = mmap(nullptr, kNotes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    transport::ProcessGroup processes(2, [&](int rank, transport::ProcessGroup& group) {
      try {
        Side side(rank, GetParam().devices()[static_cast<size_t>(rank)], group, static_cast<Note*>(page));
        body(side, group);
        side.meet();
      } catch (const std::exception& failure) {
        ADD_FAILURE() << "rank " << rank << ": " << failure.what();
      }
    });
    EXPECT_TRUE(processes.wait(std::chrono::seconds(60))) << "a side has failed (above), crashed, or not ended in time";
    munmap(page, kNotes);
  }
};

INSTANTIATE_TEST_SUITE_P(Layouts, RegistrationsTest,
                         ::testing::Values(Layout{Placement::kOneGpu, 2}, Layout{Placement::kGpuEach, 2}), name_of);

// Nothing else wakes its cache thread, which sleeps again 20 ms after it began to follow the peer.
TEST_P(RegistrationsTest, memory_appears_where_none_is_exported) {
  on_both_sides([](Side& side, transport::ProcessGroup&) {
    const cuda::DeviceMemory memory = require(cuda::DeviceMemory::allocate(kBytes));
    std::this_thread::sleep_for(2 * ipc::CacheThread::kAlert);
    side.meet();
    const cuda::IpcLocation theirs =
        side.swap(side.rank() == 0 ? cuda::IpcLocation{} : side.registrations().locate(memory.data(), kBytes));
    if (side.rank() == 0) {
      EXPECT_FALSE(side.finds(theirs));
      side.registrations().expect_peers(memory.data(), kBytes);
      side.expect_found(theirs);
    }
    side.meet();
  });
}

TEST_P(RegistrationsTest, memory_of_cuda_malloc_appears) {
  on_both_sides([](Side& side, transport::ProcessGroup&) {
    const cuda::DeviceMemory memory = require(cuda::DeviceMemory::allocate(kBytes));
    fill(memory.data(), kBytes, 10 + side.rank());
    fill(memory.data() + kBytes - kMiB, kMiB, 20 + side.rank());
    const cuda::IpcLocation theirs = side.swap(memory.data() + kMiB, kMiB);
    EXPECT_EQ(theirs.offset, kMiB);
    side.expect_found(theirs);
    EXPECT_EQ(side.look(theirs), 11 - side.rank());
    EXPECT_EQ(side.look(theirs, kBytes - 2 * kMiB), 21 - side.rank());
    EXPECT_EQ(side.registrations().counts().num_exported, 1u);
    EXPECT_TRUE(comes_true([&] { return side.registrations().counts().num_imported == 1; }));
    side.meet();
  });
}

// The driver puts several allocations into the 2 MiB that it maps at least.
TEST_P(RegistrationsTest, small_allocations_appear) {
  on_both_sides([](Side& side, transport::ProcessGroup&) {
    constexpr size_t kSmall = size_t{64} << 10;
    std::vector<cuda::DeviceMemory> memories;
    for (int i = 0; i < 3; ++i) {
      memories.push_back(require(cuda::DeviceMemory::allocate(kSmall)));
      fill(memories.back().data(), kSmall, 10 * i + side.rank());
    }
    for (int i = 0; i < 3; ++i) {
      const cuda::IpcLocation theirs = side.swap(memories[static_cast<size_t>(i)].data(), kSmall);
      side.expect_found(theirs);
      EXPECT_EQ(side.look(theirs), 10 * i + 1 - side.rank());
      EXPECT_EQ(side.look(theirs, kSmall - 1), 10 * i + 1 - side.rank());
    }
    side.meet();
  });
}

// Freed memory is not found, and stays mapped while a launch may use it. New memory at its address is found under
// another number, at the latest after the former mapping has been closed.
TEST_P(RegistrationsTest, memory_that_is_freed_goes_and_its_address_comes_back) {
  on_both_sides([](Side& side, transport::ProcessGroup&) {
    auto memory = std::make_unique<cuda::DeviceMemory>(require(cuda::DeviceMemory::allocate(kBytes)));
    const std::byte* const former_address = memory->data();
    const cuda::IpcLocation former = side.swap(memory->data());
    side.expect_found(former);
    side.meet();
    std::optional<ipc::LaunchLedger::Launching> launching(side.launches().launching());
    memory.reset();
    side.expect_gone(former);
    EXPECT_TRUE(comes_true([&] { return side.registrations().counts().num_retired == 1; }));
    side.meet();
    memory = std::make_unique<cuda::DeviceMemory>(require(cuda::DeviceMemory::allocate(kBytes)));
    RecordProperty("address_was_used_again", memory->data() == former_address ? "yes" : "no");
    fill(memory->data(), kBytes, 30 + side.rank());
    const cuda::IpcLocation latter = side.swap(memory->data());
    EXPECT_NE(latter.registration, former.registration);
    EXPECT_EQ(side.registrations().counts().num_retired, 1u);
    launching.reset();
    EXPECT_TRUE(side.has_closed_all());
    side.expect_found(latter);
    EXPECT_EQ(side.look(latter), 31 - side.rank());
    EXPECT_FALSE(side.finds(former));
    side.meet();
  });
}

TEST_P(RegistrationsTest, memory_of_pools_is_not_offered) {
  on_both_sides([](Side& side, transport::ProcessGroup&) {
    const cuda::Stream stream = require(cuda::Stream::create());
    const cuda::StreamMemory memory = require(cuda::StreamMemory::allocate(kBytes, stream));
    require(stream.view().synchronize());
    EXPECT_EQ(side.registrations().locate(memory.data(), kBytes).registration, 0u);
    const cuda::PinnedMemory host = require(cuda::PinnedMemory::allocate(kBytes));
    EXPECT_EQ(side.registrations().locate(host.data(), kBytes).registration, 0u);
    EXPECT_EQ(side.registrations().locate(reinterpret_cast<const void*>(64), kBytes).registration, 0u);
    EXPECT_EQ(side.registrations().counts().num_exported, 0u);
  });
}

TEST_P(RegistrationsTest, memory_made_to_be_shared_appears_and_goes) {
  on_both_sides([](Side& side, transport::ProcessGroup&) {
    auto memory = std::make_unique<cuda::SharedMemory>(require(cuda::SharedMemory::allocate(side.device(), kBytes)));
    fill(memory->data(), kBytes, 40 + side.rank());
    const cuda::IpcLocation theirs = side.swap(memory->data());
    side.expect_found(theirs);
    EXPECT_EQ(side.look(theirs, kBytes - 1), 41 - side.rank());
    side.meet();
    memory.reset();
    side.expect_gone(theirs);
    EXPECT_TRUE(comes_true([&] { return side.registrations().counts().num_imported == 0; }));
    EXPECT_TRUE(comes_true([&] { return side.registrations().counts().num_exported == 0; }));
    EXPECT_EQ(side.registrations().counts().num_retired, 0u);
  });
}

TEST_P(RegistrationsTest, tensors_over_granules_are_one_registration) {
  on_both_sides([](Side& side, transport::ProcessGroup&) {
    constexpr size_t kGranule = Granules::kBytes;
    Granules granules(side.device(), 4);
    for (size_t i = 0; i < 4; ++i) fill(granules.at(i), kGranule, static_cast<int>(10 * i) + side.rank());
    const cuda::IpcLocation former = side.swap(granules.at(1) + 512, 2 * kGranule);
    EXPECT_EQ(former.offset, 512u);
    side.expect_found(former);
    EXPECT_EQ(side.look(former), 11 - side.rank());
    EXPECT_EQ(side.look(former, kGranule), 21 - side.rank());
    EXPECT_EQ(side.look(former, 2 * kGranule - 1), 31 - side.rank());
    side.meet();
    granules.unmap(2);
    granules.map(2);
    fill(granules.at(2), kGranule, 50 + side.rank());
    const cuda::IpcLocation latter = side.swap(granules.at(1) + 512, 2 * kGranule);
    EXPECT_NE(latter.registration, former.registration);
    side.expect_gone(former);
    side.expect_found(latter);
    EXPECT_EQ(side.look(latter), 11 - side.rank());
    EXPECT_EQ(side.look(latter, kGranule), 51 - side.rank());
    EXPECT_EQ(side.registrations().counts().num_retired, 0u);
    side.meet();
  });
}

TEST_P(RegistrationsTest, tensors_are_located_beside_a_capture) {
  on_both_sides([](Side& side, transport::ProcessGroup&) {
    const cuda::DeviceMemory memory = require(cuda::DeviceMemory::allocate(kBytes));
    const cuda::SharedMemory shared = require(cuda::SharedMemory::allocate(side.device(), kBytes));
    const cuda::Stream stream = require(cuda::Stream::create());
    require(cudaStreamBeginCapture(stream.view().get(), cudaStreamCaptureModeGlobal));
    const cuda::IpcLocation first = side.swap(memory.data());
    const cuda::IpcLocation second = side.swap(shared.data());
    EXPECT_TRUE(comes_true([&] { return side.registrations().counts().num_imported == 2; }));
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream.view().get(), &graph), cudaSuccess);
    cudaGraphDestroy(graph);
    side.expect_found(first);
    side.expect_found(second);
    side.meet();
  });
}

// Kernels of this process may still use memory that a dying peer has exported.
TEST_P(RegistrationsTest, all_of_a_process_that_ends_is_retired) {
  on_both_sides([](Side& side, transport::ProcessGroup& processes) {
    const cuda::DeviceMemory memory = require(cuda::DeviceMemory::allocate(kBytes));
    const cuda::SharedMemory shared = require(cuda::SharedMemory::allocate(side.device(), kBytes));
    const cuda::IpcLocation first = side.swap(memory.data());
    const cuda::IpcLocation second = side.swap(shared.data());
    side.expect_found(first);
    side.expect_found(second);
    side.meet();
    if (side.rank() == 1) {
      while (true) std::this_thread::sleep_for(std::chrono::seconds(1));  // until it is killed
    }
    const std::byte* const mapped = side.entry(second.registration).base;
    std::optional<ipc::LaunchLedger::Launching> launching(side.launches().launching());
    processes.kill(1);
    side.expect_gone(first);
    side.expect_gone(second);
    EXPECT_TRUE(comes_true([&] { return side.registrations().counts().num_retired == 2; }));
    uint8_t value = 0;
    require(cudaMemcpy(&value, mapped, 1, cudaMemcpyDeviceToHost));
    launching.reset();
    EXPECT_TRUE(side.has_closed_all());
    EXPECT_EQ(side.registrations().counts().num_imported, 0u);
  });
}

}  // namespace
}  // namespace axon::testing
