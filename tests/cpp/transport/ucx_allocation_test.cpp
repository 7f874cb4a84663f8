// Checks that the warm message path allocates nothing. Every malloc of the process is counted, ours and UCX's.
#include <gtest/gtest.h>

#include <cstddef>
#include <tuple>

#include "transport/networks.hpp"
#include "transport/node.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define AXON_TEST_COUNTS_MALLOC 0  // sanitizers replace malloc
#else
#define AXON_TEST_COUNTS_MALLOC 1
#endif

namespace {
thread_local bool counting = false;
thread_local size_t num_allocations = 0;

[[maybe_unused]] void count_allocation() noexcept {  // not called under sanitizers
  num_allocations += counting ? 1 : 0;
}
}  // namespace

#if AXON_TEST_COUNTS_MALLOC
// glibc's functions, which ours call. Symbols of the executable take precedence, for all libraries.
extern "C" {
void* __libc_malloc(size_t num_bytes);
void* __libc_calloc(size_t num_elements, size_t num_bytes);
void* __libc_realloc(void* block, size_t num_bytes);
void* __libc_memalign(size_t alignment, size_t num_bytes);

void* malloc(size_t num_bytes) {
  count_allocation();
  return __libc_malloc(num_bytes);
}
void* calloc(size_t num_elements, size_t num_bytes) {
  count_allocation();
  return __libc_calloc(num_elements, num_bytes);
}
void* realloc(void* block, size_t num_bytes) {
  count_allocation();
  return __libc_realloc(block, num_bytes);
}
void* memalign(size_t alignment, size_t num_bytes) {
  count_allocation();
  return __libc_memalign(alignment, num_bytes);
}
}
#endif

namespace axon::transport {
namespace {

constexpr size_t kWindow = 64;
constexpr size_t kLargest = size_t{1} << 20;

struct Counted : Completion {
  size_t num_told = 0;
  Counted() noexcept { done = &Counted::count; }
  static void count(Completion& self, Status status) noexcept {
    static_cast<Counted&>(self).num_told += status.ok() ? 1 : 0;
  }
};

class Sink final : public Receiver {
 public:
  explicit Sink(Transport& transport) : transport_(transport) { transport.set_receiver(*this); }

  void on_message(const MessageHeader&, const Payload& payload) noexcept override {
    if (payload.rendezvous == nullptr) {
      ++received.num_told;
    } else if (transport_.fetch(payload.rendezvous, {memory_.data(), payload.num_bytes}, received)) {
      ++received.num_told;
    }
  }
  void on_peer_lost(PeerId, Status) noexcept override {}

  Counted received;

 private:
  Transport& transport_;
  Bytes memory_ = Bytes(kLargest);
};

class UcxAllocation : public testing::TestWithParam<std::tuple<NetworkKind, size_t>> {};

// Sizes between these, up to 64 KiB, are left out: UCX assembles the fragments of an eager message on the heap.
INSTANTIATE_TEST_SUITE_P(Sizes, UcxAllocation,
                         testing::Combine(testing::Values(kUcxSharedMemory, kRings),
                                          testing::Values(0, 8, 52, 1024, 4096, 8000, 70'000, kLargest)));

TEST_P(UcxAllocation, none_once_warm) {
  if (!AXON_TEST_COUNTS_MALLOC) GTEST_SKIP() << "the sanitizer's allocator cannot be counted";
  const auto& [kind, num_bytes] = GetParam();
  const auto network = kind.make();
  const auto sender = network->make_transport();
  const auto receiver = network->make_transport();
  Sink nothing(*sender);
  Sink sink(*receiver);
  const PeerId peer = sender->add_peer(receiver->address(), true).value();
  const Bytes payload = pattern(num_bytes, 1);
  Counted sent;
  const auto send_a_window = [&] {
    const size_t target = sink.received.num_told + kWindow;
    for (size_t i = 0; i < kWindow; ++i) {
      if (sender->send(peer, {}, {payload.data(), payload.size()}, sent)) ++sent.num_told;
    }
    while (sink.received.num_told < target || sent.num_told < target) {
      sender->progress();
      receiver->progress();
    }
  };
  for (int i = 0; i < 10; ++i) send_a_window();
  counting = true;
  for (int i = 0; i < 100; ++i) send_a_window();
  counting = false;
  EXPECT_EQ(num_allocations, 0u) << "in " << 100 * kWindow << " messages";
}

}  // namespace
}  // namespace axon::transport
