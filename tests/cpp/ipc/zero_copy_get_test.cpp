// One process reads GPU memory of another zero-copy, and reports memory that does not exist.
#include "ipc/zero_copy_get.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <thread>

#include "gpu_comm/device_processes.hpp"
#include "ipc/stream_marker.hpp"
#include "kernels/device_buffer.hpp"

namespace axon::testing {
namespace {

constexpr size_t kBytes = 5'000'003;

struct Exposed {
  pid_t owner;
  ipc::ExposedLocation location;
};

// The name matches the tests that must fork before any test has used CUDA.
class ExposedRegistrationsTest : public ForkedLayoutTest {
 protected:
  // Rank 0 exposes `bytes`; `read` runs on rank 1 with their location.
  static void expose_to(const Bytes& bytes,
                        const std::function<void(DeviceProcess& self, const Exposed& exposed)>& read) {
    void* const page = mmap(nullptr, sizeof(Exposed), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    on_devices(GetParam(), [&](DeviceProcess& self) {
      auto& exposed = *static_cast<Exposed*>(page);
      const DeviceBuffer buffer(kBytes, 3);
      if (self.rank() == 0) {
        buffer.upload(bytes);
        exposed = {getpid(), require(ipc::expose(self.device(), buffer.data(), kBytes))};
      }
      self.barrier();
      if (self.rank() == 1) read(self, exposed);
      self.barrier();
    });
    munmap(page, sizeof(Exposed));
  }

  static void expect_passed(const ipc::StreamMarker& marker) {
    const auto deadline = Clock::now() + std::chrono::seconds(10);
    while (marker.flag().load() == 0 && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_NE(marker.flag().load(), 0u);
  }
};

INSTANTIATE_TEST_SUITE_P(Layouts, ExposedRegistrationsTest,
                         ::testing::Values(Layout{Placement::kOneGpu, 2}, Layout{Placement::kGpuEach, 2}), name_of);

TEST_P(ExposedRegistrationsTest, are_read_where_they_lie) {
  std::mt19937 random(1);
  const Bytes bytes = random_bytes(kBytes, random);
  expose_to(bytes, [&](DeviceProcess& self, const Exposed& exposed) {
    ipc::ZeroCopyReader& reader = *require(ipc::ZeroCopyReader::of(self.device()));
    const DeviceBuffer target(kBytes, 1);
    for (int i = 0; i < 100; ++i) {
      require(cudaMemsetAsync(target.data(), i, kBytes, self.stream().get()));
      require(reader.read(exposed.owner, exposed.location, {target.data(), kBytes}, self.stream()));
      expect_passed(require(ipc::StreamMarker::set(self.stream())));
      if (i % 33 == 0) target.expect_contents(bytes, "round " + std::to_string(i));
    }
  });
}

TEST_P(ExposedRegistrationsTest, are_not_believed_to_be_where_they_are_not) {
  expose_to(Bytes(kBytes), [](DeviceProcess& self, const Exposed& exposed) {
    ipc::ZeroCopyReader& reader = *require(ipc::ZeroCopyReader::of(self.device()));
    const DeviceBuffer target(kBytes);
    const auto expect_refused = [&](pid_t owner, const ipc::ExposedLocation& lie, size_t num_bytes, const char* why) {
      const Status status = reader.read(owner, lie, {target.data(), num_bytes}, self.stream());
      EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    };
    require(reader.read(exposed.owner, exposed.location, {target.data(), kBytes}, self.stream()));
    ipc::ExposedLocation lie = exposed.location;
    lie.offset = uint64_t{1} << 40;
    expect_refused(exposed.owner, lie, kBytes, "not mapped to that length");
    lie.offset = ~uint64_t{0};
    expect_refused(exposed.owner, lie, kBytes, "not mapped to that length");
    expect_refused(exposed.owner, exposed.location, size_t{1} << 40, "not mapped to that length");
    lie = exposed.location;
    lie.registration += 7;
    expect_refused(exposed.owner, lie, kBytes, "does not export it");
    lie = exposed.location;
    ++lie.incarnation;
    expect_refused(exposed.owner, lie, kBytes, "export table cannot be read");
    expect_refused(-1, exposed.location, kBytes, "pidfd_open");
    lie.export_table = 4096;
    for (size_t arena = 2; arena < ipc::ZeroCopyReader::kMostArenas; ++arena) {
      ++lie.incarnation;
      expect_refused(exposed.owner, lie, kBytes, "export table cannot be read");
    }
    ++lie.incarnation;
    expect_refused(exposed.owner, lie, kBytes, "more than 16 GPUs");
    require(reader.read(exposed.owner, exposed.location, {target.data(), kBytes}, self.stream()));
    require(self.stream().synchronize());
  });
}

}  // namespace
}  // namespace axon::testing
