// The side axon_cpp of run.py, without Python: echoes from one process to another. It uses the protocol of worker.py.
//
//   active_message_echo serve HOST          {"address": "HOST PORT"}; serves until its stdin ends
//   active_message_echo call '"HOST PORT"'  {"connected": true}; then answers each line
//                                           {"num_bytes": 8, "in_flight": 1, "seconds": 0.2} with
//                                           {"calls": …, "calls_per_s": …, "p50_us": …, "p99_us": …}
//
// With none in flight, it sends a one-way message, and the server sends its own back.
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <thread>

#include "active_message/echo_message.hpp"
#include "rpc/core/runtime.hpp"

namespace axon {
namespace {

using namespace std::chrono_literals;
using std::chrono::duration;

constexpr double kSecondsToWarm = 0.05;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

void check(const Status& status) {
  if (!status.ok()) fail(status.message());
}

template <typename T>
T checked(Result<T> result) {
  if (!result.ok()) fail(result.status().message());
  return std::move(result).value();
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

rpc::Secret secret() {
  return checked(rpc::Secret::from(std::as_bytes(std::span(std::string_view("of this benchmark's two processes")))));
}

// One-way messages to one peer, of which one or two are in flight.
class Teller {
 public:
  void tell(rpc::Connection& peer, std::string_view function, ConstBuffer data) {
    rpc::Call& call = *rested();
    call.reset();
    call.answer = rpc::Call::Answer::kNone;
    put(call.request, function, data);
    peer.start(call);
  }

 private:
  rpc::CallPointer& rested() {
    for (rpc::CallPointer& call : calls_) {
      if (call->released()) return call;
    }
    calls_.push_back(rpc::CallPointer::adopt(*new rpc::Call));
    return calls_.back();
  }

  std::vector<rpc::CallPointer> calls_;
};

void serve(const std::string& host) {
  std::unique_ptr<rpc::Runtime> runtime = checked(rpc::Runtime::open({.name = "server"}));
  check(runtime->core().add("echo", [](rpc::Invocation& invocation) {
    const Buffer data = invocation.arguments().tensors()[0].data;
    put(invocation.answer, {}, {data.data, data.num_bytes});
    invocation.reply();
  }));
  Teller teller;
  check(runtime->core().add("return", [&teller](rpc::Invocation& invocation) {
    const Buffer data = invocation.arguments().tensors()[0].data;
    teller.tell(*invocation.connection(), "returned", {data.data, data.num_bytes});
    invocation.reply();
  }));
  const uint16_t port = checked(runtime->listen({.host = host, .port = 0}, secret()));
  say("{\"address\": \"" + host + " " + std::to_string(port) + "\"}");
  sync::atomic<bool> stop{false};
  std::thread watch([&] {
    while (std::getchar() != EOF) {
    }
    stop.store(true);
    runtime->wake();
  });
  runtime->serve(stop, Clock::now() + 24h);
  watch.join();
}

// Keeps a number of calls in flight, and always waits for the oldest. Calls are reused, so nothing is allocated after
// the first.
class Caller {
 public:
  explicit Caller(const rpc::SocketAddress& socket_address)
      : runtime_(checked(rpc::Runtime::open({.name = "client"}))),
        server_(checked(runtime_->connect(socket_address, secret(), Clock::now() + 30s))) {
    check(runtime_->core().add("returned", [this](rpc::Invocation& invocation) {
      has_returned_.store(true);
      invocation.reply();
    }));
  }

  void prepare(size_t num_bytes, size_t in_flight) {
    payload_.assign(num_bytes, std::byte{0x5A});
    while (calls_.size() < in_flight) calls_.push_back(rpc::CallPointer::adopt(*new rpc::Call));
    in_flight_ = in_flight;
    deadline_ = Clock::now() + 60s;
    if (in_flight == 0) return;
    start(0);
    finish(0);
    const Buffer echoed = calls_[0]->reply().tensors()[0].data;
    if (echoed.num_bytes != num_bytes || std::memcmp(echoed.data, payload_.data(), num_bytes) != 0) {
      fail("what came back is something else");
    }
  }

  // Returns the seconds that all calls take. With one call in flight, `times` has the time of each.
  double run(size_t num_calls, std::vector<double>& times) {
    times.clear();
    const Clock::time_point began = Clock::now();
    deadline_ = began + 60s;
    if (in_flight_ == 0) return there_and_back(num_calls, times);
    Clock::time_point last = began;
    for (size_t i = 0; i < num_calls + in_flight_; ++i) {
      if (i >= in_flight_) finish(i % in_flight_);
      if (in_flight_ == 1 && i > 0) {
        const Clock::time_point now = Clock::now();
        times.push_back(duration<double, std::micro>(now - std::exchange(last, now)).count());
      }
      if (i < num_calls) start(i % in_flight_);
    }
    return duration<double>(Clock::now() - began).count();
  }

 private:
  void start(size_t slot) {
    rpc::Call& call = *calls_[slot];
    while (call.finished() && !call.released()) std::this_thread::yield();
    call.reset();
    put(call.request, "echo", {payload_.data(), payload_.size()});
    server_->start(call);
  }

  double there_and_back(size_t num_messages, std::vector<double>& times) {
    const Clock::time_point began = Clock::now();
    Clock::time_point last = began;
    for (size_t i = 0; i < num_messages; ++i) {
      has_returned_.store(false, std::memory_order_relaxed);
      teller_.tell(*server_, "return", {payload_.data(), payload_.size()});
      if (!runtime_->serve(has_returned_, deadline_)) fail("nothing returned in time");
      const Clock::time_point now = Clock::now();
      times.push_back(duration<double, std::micro>(now - std::exchange(last, now)).count());
    }
    return duration<double>(last - began).count();
  }

  void finish(size_t slot) {
    rpc::Call& call = *calls_[slot];
    if (!server_->wait(call, deadline_)) fail("no answer in time");
    check(call.status().clone());
  }

  std::unique_ptr<rpc::Runtime> runtime_;
  std::shared_ptr<rpc::Connection> server_;  // shared with the runtime
  std::vector<std::byte> payload_;
  std::vector<rpc::CallPointer> calls_;
  size_t in_flight_ = 1;
  Clock::time_point deadline_{};  // of a run
  Teller teller_;
  sync::atomic<bool> has_returned_{false};
};

void measure(Caller& caller, size_t num_bytes, size_t in_flight, double seconds) {
  caller.prepare(num_bytes, in_flight);
  std::vector<double> times;
  const size_t fewest_calls = std::max<size_t>(in_flight, 1);
  size_t num_calls = fewest_calls;
  double taken = 0;
  while ((taken = caller.run(num_calls, times)) < kSecondsToWarm) num_calls *= 2;
  num_calls = std::max(fewest_calls, static_cast<size_t>(static_cast<double>(num_calls) * seconds / taken));
  taken = caller.run(num_calls, times);
  std::ranges::sort(times);
  const auto at = [&](double share) {
    return times.empty() ? "null"
                         : std::to_string(times[static_cast<size_t>(share * static_cast<double>(times.size() - 1))]);
  };
  say("{\"calls\": " + std::to_string(num_calls) +
      ", \"calls_per_s\": " + std::to_string(static_cast<double>(num_calls) / taken) + ", \"p50_us\": " + at(0.5) +
      ", \"p99_us\": " + at(0.99) + "}");
}

void call(const rpc::SocketAddress& socket_address) {
  Caller caller(socket_address);
  say("{\"connected\": true}");
  for (std::string line; std::getline(std::cin, line);) {
    size_t num_bytes = 0, in_flight = 0;
    double seconds = 0;
    if (std::sscanf(line.c_str(), R"({"num_bytes": %zu, "in_flight": %zu, "seconds": %lf})", &num_bytes, &in_flight,
                    &seconds) != 3) {
      fail("what is to be measured? " + line);
    }
    measure(caller, num_bytes, in_flight, seconds);
  }
}

}  // namespace
}  // namespace axon

int main(int num_words, char** words) {
  std::array<char, 256> host;
  uint16_t port = 0;
  if (num_words == 3 && std::strcmp(words[1], "serve") == 0) {
    axon::serve(words[2]);
  } else if (num_words == 3 && std::sscanf(words[2], "\"%255s %hu\"", host.data(), &port) == 2) {
    axon::call({.host = host.data(), .port = port});
  } else {
    axon::fail("say: serve HOST, or: call '\"HOST PORT\"'");
  }
  return 0;
}
