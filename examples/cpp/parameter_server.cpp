// A parameter server: workers fetch weights, improve them on samples of their own, and send back gradients when they
// are ready. Any number of workers may start and stop at any time.
//
//     parameter_server serve FILE 2         # until two workers have finished
//     parameter_server work FILE 1          # and, elsewhere: parameter_server work FILE 2
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <random>
#include <vector>

#include "address_file.hpp"

using namespace std::chrono_literals;

namespace {

constexpr size_t kNumWeights = 100'000;
constexpr int kNumSteps = 200;
constexpr float kLearningRate = 0.05F;

// The values around which the workers' samples lie; the server does not know them.
float truth(size_t index) {
  return std::sin(0.001F * static_cast<float>(index));
}

using Weights = std::vector<float>;

// Functions run on any thread, several at a time. An answer refers to its tensors until it has been sent. So the server
// never writes to weights that it has answered with: each gradient makes new ones.
class Server {
 public:
  void pull(axon::Invocation& invocation) {
    std::shared_ptr<const Weights> weights = current();
    const std::span<const float> elements(*weights);
    invocation.answer().tensor(elements, axon::Owner::of(std::move(weights)));
    invocation.reply();
  }

  void push(axon::Invocation& invocation) {
    const axon::Tensor gradient = invocation.arguments().tensor(0);
    if (gradient.type != axon::DataType::kFloat32 || gradient.as<float>().size() != kNumWeights) {
      return invocation.fail("ValueError", "a gradient must have one float per weight");
    }
    const std::lock_guard lock(mutex_);
    auto improved = std::make_shared<Weights>(*weights_);
    for (size_t i = 0; i < kNumWeights; ++i) (*improved)[i] -= kLearningRate * gradient.as<float>()[i];
    weights_ = std::move(improved);
    invocation.reply();
  }

  float error() {
    const std::shared_ptr<const Weights> weights = current();
    float most = 0;
    for (size_t i = 0; i < kNumWeights; ++i) most = std::max(most, std::abs((*weights)[i] - truth(i)));
    return most;
  }

 private:
  std::shared_ptr<const Weights> current() {
    const std::lock_guard lock(mutex_);
    return weights_;
  }

  std::mutex mutex_;
  std::shared_ptr<const Weights> weights_ = std::make_shared<Weights>(kNumWeights, 0.0F);
};

int serve(const std::string& file, int num_workers) {
  Server server;
  std::atomic<int> num_working{num_workers};
  axon::Runtime runtime = checked(axon::Runtime::open({.name = "parameter server"}));
  check(runtime.add("pull", [&](axon::Invocation& invocation) { server.pull(invocation); }));
  check(runtime.add("push", [&](axon::Invocation& invocation) { server.push(invocation); }));
  check(runtime.add("through", [&](axon::Invocation& invocation) {
    invocation.reply();
    if (num_working.fetch_sub(1) == 1) runtime.stop();
  }));
  leave_address(runtime, file);
  if (!runtime.serve(60s)) give_up("the workers did not finish in time");
  runtime.drain(5s);
  std::printf("largest error of %zu weights: %.3f\n", kNumWeights, server.error());
  return server.error() < 0.2F ? 0 : 1;
}

void finish(axon::Call& call) {
  if (!call.wait(10s)) give_up("the server does not answer");
  check(call.status().ok() ? axon::Status() : axon::Status(call.status().code(), std::string(call.failure())));
}

int work(const std::string& file, unsigned seed) {
  axon::Runtime runtime = checked(axon::Runtime::open({.name = "worker " + std::to_string(seed)}));
  const axon::Peer server = connect_to(runtime, file);
  std::mt19937 random(seed);
  std::normal_distribution<float> noise(0, 0.1F);
  Weights gradient(kNumWeights);
  axon::Call pull(server, "pull");
  axon::Call push(server, "push");
  for (int step = 0; step < kNumSteps; ++step) {
    pull.start();
    finish(pull);
    const axon::Tensor weights = pull.reply().tensor(0);
    const float shift = noise(random);  // error of this step's sample
    for (size_t i = 0; i < kNumWeights; ++i) gradient[i] = weights.as<float>()[i] - truth(i) - shift;
    // not copied: must stay unchanged until the call has finished
    push.request().tensor(std::span<const float>(gradient));
    push.start();
    finish(push);
    pull.open(server, "pull");
    push.open(server, "push");
  }
  axon::Call through(server, "through");
  through.start();
  finish(through);
  return 0;
}

}  // namespace

int main(int num_words, char** words) {
  if (num_words == 4 && std::strcmp(words[1], "serve") == 0) return serve(words[2], std::atoi(words[3]));
  if (num_words == 4 && std::strcmp(words[1], "work") == 0) return work(words[2], std::atoi(words[3]));
  give_up("usage: parameter_server serve FILE WORKERS | work FILE SEED");
}
