// Measures two processes over the engine's transport, with rings above UCX: half a round trip, and one way with 32
// messages in flight. Prints one JSON line per size. The reference is UCX's own ucx_perftest -t ucp_am_lat and -t
// ucp_am_bw with the same library, which benchmarks/beside_ucx_perftest.py alternates with this program. As in
// ucx_perftest, the memory that is sent was never written. So all pages of large messages are the kernel's zero page,
// which stays in the cache.
//
//   transport_speed [num_bytes …]                              two processes of this host
//   transport_speed --between-hosts RANK SOCKET num_bytes …    one of two processes on two hosts, which exchange
//                                                              addresses over an inherited descriptor
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "transport/rings/rings.hpp"
#include "transport/ucx/ucx.hpp"

namespace axon {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kNumUnderWay = 32;

struct Counter : transport::Completion {
  size_t num_pending = 0;

  Counter() noexcept { done = &Counter::count; }
  static void count(transport::Completion& self, Status) noexcept { --static_cast<Counter&>(self).num_pending; }
};

struct Free {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};

class Endpoint final : public transport::Receiver {
 public:
  explicit Endpoint(std::unique_ptr<transport::Transport> transport) : transport_(std::move(transport)) {
    transport_->set_receiver(*this);
  }

  void meet(int socket, bool same_host) {
    const std::span<const std::byte> ours = transport_->address();
    const size_t length = ours.size();
    if (write(socket, &length, sizeof length) < 0 || write(socket, ours.data(), length) < 0) std::abort();
    size_t their_length = 0;
    if (read(socket, &their_length, sizeof their_length) != sizeof their_length) std::abort();
    std::vector<std::byte> theirs(their_length);
    if (read(socket, theirs.data(), their_length) != static_cast<ssize_t>(their_length)) std::abort();
    peer_ = transport_->add_peer(theirs, same_host).value();
  }

  void resize(size_t num_bytes) {
    outgoing_.reset(static_cast<std::byte*>(std::calloc(num_bytes, 1)));
    incoming_.assign(num_bytes, std::byte{0});
  }

  void send() {
    if (!transport_->send(peer_, header_, {outgoing_.get(), incoming_.size()}, sends_)) ++sends_.num_pending;
  }
  // Waits until `num_messages` more messages have arrived.
  void receive(uint64_t num_messages) {
    const uint64_t target = seen_ + num_messages;
    while (num_received_ < target || fetches_.num_pending != 0) transport_->progress();
    seen_ = target;
  }
  void drain(size_t num_left) {
    while (sends_.num_pending > num_left) transport_->progress();
  }

  void on_message(const transport::MessageHeader&, const transport::Payload& payload) noexcept override {
    ++num_received_;
    if (payload.rendezvous == nullptr) {
      std::copy_n(payload.bytes, payload.num_bytes, incoming_.data());
      return;
    }
    const Buffer into{incoming_.data(), payload.num_bytes};
    if (!transport_->fetch(payload.rendezvous, into, fetches_)) ++fetches_.num_pending;
  }
  void on_peer_lost(transport::PeerId, Status) noexcept override {}

 private:
  std::unique_ptr<transport::Transport> transport_;
  transport::PeerId peer_ = 0;
  transport::MessageHeader header_;
  std::unique_ptr<std::byte, Free> outgoing_;
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
    endpoint.receive(1);  // the last one has arrived
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

// Runs many short batches: the best shows what the code can do, the median what this machine allows.
void run(Endpoint& endpoint, bool first, size_t num_bytes) {
  constexpr size_t kVolume = size_t{1} << 24;  // per batch
  const int num_messages = static_cast<int>(std::clamp<size_t>(kVolume / (num_bytes + 4096), 8, 500));
  const int num_batches = num_bytes < kVolume / 8 ? 100 : 20;
  endpoint.resize(num_bytes);
  std::vector<double> latencies;
  std::vector<double> rates;
  for (int batch = 0; batch < num_batches; ++batch) {
    latencies.push_back(half_round_trip_us(endpoint, first, num_messages));
  }
  for (int batch = 0; batch < num_batches; ++batch) {
    rates.push_back(messages_per_second(endpoint, first, num_messages));
  }
  if (!first) return;
  std::printf(
      "{\"num_bytes\": %zu, \"half_round_trip_us\": {\"best\": %.3f, \"median\": %.3f}, "
      "\"messages_per_s\": {\"best\": %.6g, \"median\": %.6g}}\n",
      num_bytes, std::ranges::min(latencies), median(latencies), std::ranges::max(rates), median(rates));
  std::fflush(stdout);
}

enum class Where : uint8_t { kSameHost, kOtherHost };

int run_all(int socket, bool first, Where peer, const std::vector<size_t>& sizes) {
  auto transport = transport::open_ucx_transport();
  if (transport.ok()) transport = transport::with_rings(std::move(transport).value());
  if (!transport.ok()) {
    std::fprintf(stderr, "%s\n", transport.status().message().c_str());
    return 1;
  }
  Endpoint endpoint(std::move(transport).value());
  endpoint.meet(socket, peer == Where::kSameHost);
  for (const size_t num_bytes : sizes) run(endpoint, first, num_bytes);
  return 0;
}

int run_as_two(const std::vector<size_t>& sizes) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return 1;
  const pid_t child = fork();
  const int failed = run_all(sockets[child == 0], child != 0, Where::kSameHost, sizes);
  if (child == 0 || failed != 0) return failed;
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace axon

int main(int argc, char** argv) {
  std::vector<std::string_view> arguments(argv + 1, argv + argc);
  const bool between_hosts = arguments.size() > 3 && arguments[0] == "--between-hosts";
  std::vector<size_t> sizes;
  for (int i = between_hosts ? 4 : 1; i < argc; ++i) sizes.push_back(std::strtoull(argv[i], nullptr, 10));
  if (between_hosts) {
    return axon::run_all(std::atoi(argv[3]), arguments[1] == "0", axon::Where::kOtherHost, sizes);
  }
  if (sizes.empty()) sizes = {8, 52, 256, 1024, 4096, 8000, 16384, 65536, size_t{1} << 20, size_t{16} << 20};
  return axon::run_as_two(sizes);
}
