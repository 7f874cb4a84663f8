// Two processes on this host over the UCX transport: half a round trip, and one-way bandwidth with 32 messages under
// way. The yardstick is UCX's own: ucx_perftest -t ucp_am_lat and -t ucp_am_bw, of the same library.
//
//   transport_speed [num_bytes …]
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "transport/ucx/ucx.hpp"

namespace axon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNumUnderWay = 32;

struct Counter : Completion {
  size_t num_pending = 0;

  Counter() noexcept { done = &Counter::count; }
  static void count(Completion& self, Status) noexcept { --static_cast<Counter&>(self).num_pending; }
};

class Endpoint final : public Receiver {
 public:
  explicit Endpoint(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {
    transport_->set_receiver(*this);
  }

  void meet(int socket) {
    const std::span<const std::byte> ours = transport_->address();
    const size_t length = ours.size();
    if (write(socket, &length, sizeof length) < 0 || write(socket, ours.data(), length) < 0) std::abort();
    size_t their_length = 0;
    if (read(socket, &their_length, sizeof their_length) != sizeof their_length) std::abort();
    std::vector<std::byte> theirs(their_length);
    if (read(socket, theirs.data(), their_length) != static_cast<ssize_t>(their_length)) std::abort();
    peer_ = transport_->add_peer(theirs, true).value();
  }

  void resize(size_t num_bytes) {
    outgoing_.assign(num_bytes, std::byte{1});
    incoming_.assign(num_bytes, std::byte{0});
  }

  void send() {
    if (!transport_->send(peer_, header_, {outgoing_.data(), outgoing_.size()}, sends_)) ++sends_.num_pending;
  }
  // Until so many more messages are here.
  void receive(uint64_t num_messages) {
    const uint64_t target = seen_ + num_messages;
    while (num_received_ < target || fetches_.num_pending != 0) transport_->progress();
    seen_ = target;
  }
  void drain(size_t num_left) {
    while (sends_.num_pending > num_left) transport_->progress();
  }

  void on_message(const MessageHeader&, const Payload& payload) noexcept override {
    ++num_received_;
    if (payload.rendezvous == nullptr) {
      std::copy_n(payload.bytes, payload.num_bytes, incoming_.data());
      return;
    }
    const Buffer into{incoming_.data(), payload.num_bytes};
    if (!transport_->fetch(payload.rendezvous, into, fetches_)) ++fetches_.num_pending;
  }
  void on_peer_lost(PeerId, Status) noexcept override {}

 private:
  std::unique_ptr<Transport> transport_;
  PeerId peer_ = 0;
  MessageHeader header_;
  std::vector<std::byte> outgoing_;
  std::vector<std::byte> incoming_;
  Counter sends_;
  Counter fetches_;
  uint64_t num_received_ = 0;
  uint64_t seen_ = 0;
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double half_round_trip_us(Endpoint& endpoint, bool first, int num_rounds) {
  const auto start = Clock::now();
  for (int round = 0; round < num_rounds; ++round) {
    if (first) endpoint.send();
    endpoint.receive(1);
    if (!first) endpoint.send();
    endpoint.drain(0);
  }
  return seconds_since(start) / num_rounds / 2 * 1e6;
}

double messages_per_second(Endpoint& endpoint, bool first, int num_messages) {
  const auto start = Clock::now();
  if (first) {
    for (int i = 0; i < num_messages; ++i) {
      endpoint.drain(kNumUnderWay - 1);
      endpoint.send();
    }
    endpoint.drain(0);
    endpoint.receive(1);  // the last has come
  } else {
    endpoint.receive(static_cast<uint64_t>(num_messages));
    endpoint.send();
    endpoint.drain(0);
  }
  return num_messages / seconds_since(start);
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

// Many short batches: the best is what the code can do, the median what this machine lets it do.
void run(Endpoint& endpoint, bool first, size_t num_bytes) {
  constexpr size_t kVolume = size_t{1} << 24;  // of a batch
  constexpr int kNumBatches = 100;
  const int num_messages = static_cast<int>(std::clamp<size_t>(kVolume / (num_bytes + 4096), 8, 500));
  endpoint.resize(num_bytes);
  std::vector<double> latencies;
  std::vector<double> rates;
  for (int batch = 0; batch < kNumBatches; ++batch) {
    latencies.push_back(half_round_trip_us(endpoint, first, num_messages));
  }
  for (int batch = 0; batch < kNumBatches; ++batch) {
    rates.push_back(messages_per_second(endpoint, first, num_messages));
  }
  if (!first) return;
  const double gigabytes = static_cast<double>(num_bytes) * 1e-9;
  std::printf("%9zu B  half round trip %9.3f us best %9.3f us median   one way %8.3f GB/s best %8.3f GB/s median\n",
              num_bytes, std::ranges::min(latencies), median(latencies), std::ranges::max(rates) * gigabytes,
              median(rates) * gigabytes);
  std::fflush(stdout);
}

}  // namespace
}  // namespace axon

int main(int argc, char** argv) {
  std::vector<size_t> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  if (sizes.empty()) sizes = {8, 52, 256, 1024, 4096, 8000, 16384, 65536, size_t{1} << 20, size_t{16} << 20};
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
  const pid_t child = fork();
  auto transport = axon::open_ucx_transport();
  if (!transport.ok()) {
    std::fprintf(stderr, "%s\n", transport.status().message().c_str());
    return 1;
  }
  axon::Endpoint endpoint(std::move(transport).value());
  endpoint.meet(sockets[child == 0]);
  for (const size_t num_bytes : sizes) axon::run(endpoint, child != 0, num_bytes);
  if (child == 0) return 0;
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}
