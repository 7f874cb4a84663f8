// The path of a call with an 8-byte tensor and of its answer, between two engines over rings. It has three parts, each
// a function of its own for callgrind's --toggle-collect:
//   1. the caller, from the opening of the call until it is sent;
//   2. the callee, from the message to the answer;
//   3. the caller, from the answer to the end of its wait.
//
//   invoke_path [num_calls]
#include <array>
#include <cstdlib>
#include <memory>

#include "active_message/echo_message.hpp"
#include "cpp/paths.hpp"
#include "rpc/core/runtime_core.hpp"

namespace axon {
namespace {

using namespace std::chrono_literals;

constexpr int kNumWarm = 20;  // not counted; connections are made meanwhile

struct End {
  explicit End(const char* name)
      : engine(make_engine(transport::RingUse::kAlways)),
        own_address(engine->make_address()),
        core(std::make_shared<rpc::RuntimeCore>(*engine, rpc::RuntimeOptions{.name = name})) {
    require(core->open().ok(), "the runtime cannot be opened");
  }
  void meet(const End& other) {
    rpc::Identity identity{.name = "other",
                           .incarnation = 1,
                           .address = other.own_address.address(),
                           .peer_key = other.own_address.address().key,
                           .own_key = own_address.address().key};
    connection = core->admit(std::move(identity)).value();
  }

  std::unique_ptr<engine::Engine> engine;
  engine::OwnAddress own_address;
  std::shared_ptr<rpc::RuntimeCore> core;
  std::shared_ptr<rpc::Connection> connection;
};

}  // namespace

extern "C" __attribute__((noinline)) void counted_call(rpc::Connection& server, rpc::Call& call, ConstBuffer data) {
  call.reset();
  put(call.request, "echo", data);
  server.start(call);
}

extern "C" __attribute__((noinline)) void counted_answer(engine::Engine& engine,
                                                         const sync::atomic<bool>& has_answered) {
  engine.wait(has_answered, Clock::now() + 60s);
}

extern "C" __attribute__((noinline)) void counted_end(rpc::Connection& server, rpc::Call& call,
                                                      Clock::time_point deadline) {
  server.wait(call, deadline);
}

static void run(int num_calls) {
  End client("client"), server("server");
  client.meet(server);
  server.meet(client);
  sync::atomic<bool> has_answered{false};
  const auto echo = [&](rpc::Invocation& invocation) {
    const Buffer data = invocation.arguments().tensors()[0].data;
    put(invocation.answer, {}, {data.data, data.num_bytes});
    invocation.reply();
    has_answered.store(true, std::memory_order_relaxed);
  };
  require(server.core->add("echo", echo).ok(), "function 'echo' already exists");
  const std::array<std::byte, 8> payload{};
  const ConstBuffer data{.data = payload.data(), .num_bytes = payload.size()};
  rpc::CallPointer call = rpc::CallPointer::adopt(*new rpc::Call);
  for (int i = 0; i < num_calls; ++i) {
    has_answered.store(false);
    counted_call(*client.connection, *call, data);
    if (i < kNumWarm) {
      while (!client.connection->wait(*call, Clock::now() + 1ms)) server.engine->wait(has_answered, Clock::now() + 1ms);
    } else {
      counted_answer(*server.engine, has_answered);
      counted_end(*client.connection, *call, Clock::now() + 60s);
    }
    require(call->status().ok(), "a call has failed");
    while (!call->released()) client.connection->wait(*call, Clock::now() + 1ms);
  }
  client.core->close();
  server.core->close();
}

}  // namespace axon

int main(int argc, char** argv) {
  axon::run(argc > 1 ? std::atoi(argv[1]) : 1000);
}
