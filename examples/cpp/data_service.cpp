// A data service: one process makes batches on several threads, and others train on them. Trainers see a generator and
// request its values ahead, so that the next batch is ready when they have used the previous one.
//
//     data_service serve FILE               # until a trainer reports that it has finished
//     data_service train FILE 500
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <numeric>
#include <vector>

#include "address_file.hpp"

using namespace std::chrono_literals;

namespace {

constexpr std::array<int64_t, 4> kShape{64, 32, 32, 3};
constexpr size_t kNumBytes = 64 * 32 * 32 * 3;
constexpr size_t kNumMakers = 2;
constexpr size_t kNumAhead = 8;

struct Batch {
  std::vector<std::byte> images = std::vector<std::byte>(kNumBytes);
  std::vector<int64_t> labels = std::vector<int64_t>(64);
};

// Simulates reading and decoding.
std::shared_ptr<Batch> make_batch(uint64_t number) {
  auto batch = std::make_shared<Batch>();
  std::memset(batch->images.data(), static_cast<int>(number % 251), kNumBytes);
  std::iota(batch->labels.begin(), batch->labels.end(), number);
  return batch;
}

// Makes the batches that trainers request. Generators must not wait, so they leave that to these threads.
class Makers {
 public:
  Makers() {
    for (std::thread& thread : threads_) thread = std::thread([this] { make(); });
  }
  ~Makers() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void push(axon::Next& next) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(std::move(next));
    }
    changed_.notify_one();
  }

 private:
  void make() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
      if (stopped_) return;  // requests still queued get an error: a dropped one fails
      axon::Next next = std::move(waiting_.front());
      waiting_.pop_front();
      const uint64_t number = num_made_++;
      lock.unlock();
      answer(next, number);
      lock.lock();
    }
  }

  static void answer(axon::Next& next, uint64_t number) {
    if (next.is_cancelled()) return next.end();
    const std::shared_ptr<Batch> batch = make_batch(number);
    axon::Message value = next.value();
    value.array(3);
    value.unsigned_integer(number);
    value.tensor({.type = axon::DataType::kUint8, .shape = kShape, .data = batch->images}, axon::Owner::of(batch));
    value.tensor(std::span<const int64_t>(batch->labels));  // small: copied
    next.reply();
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::deque<axon::Next> waiting_;
  uint64_t num_made_ = 0;
  bool stopped_ = false;
  std::array<std::thread, kNumMakers> threads_;
};

int serve(const std::string& file) {
  axon::Runtime runtime = checked(axon::Runtime::open({.name = "data service"}));
  Makers makers;
  check(runtime.add_generator(
      "batches", [&](axon::Received) -> axon::Generator { return [&](axon::Next& next) { makers.push(next); }; }));
  check(runtime.add("through", [&](axon::Invocation& invocation) {
    invocation.reply();
    runtime.stop();
  }));
  leave_address(runtime, file);
  if (!runtime.serve(60s)) give_up("no trainer has reported that it has finished");
  runtime.drain(5s);
  return 0;
}

// Simulates a step of training.
void use(axon::ValueReader values, const axon::Received& batch) {
  if (values.next().count != 3) give_up("a batch must have a number, images and labels");
  const auto number = static_cast<uint64_t>(values.next().integer);
  const axon::Tensor images = batch.tensor(values.next().count);
  const axon::Tensor labels = batch.tensor(values.next().count);
  const bool is_right = images.data.size() == kNumBytes && images.data.back() == std::byte(number % 251) &&
                        labels.as<int64_t>()[0] == static_cast<int64_t>(number);
  if (!is_right) give_up("batch " + std::to_string(number) + " is corrupted");
}

int train(const std::string& file, size_t num_batches) {
  axon::Runtime runtime = checked(axon::Runtime::open({.name = "trainer"}));
  const axon::Peer service = connect_to(runtime, file);
  axon::Stream batches(service, "batches", {.ahead = kNumAhead});
  batches.arguments(0);
  batches.start();
  const auto began = std::chrono::steady_clock::now();
  for (size_t i = 0; i < num_batches; ++i) {
    if (!batches.next(10s)) give_up(batches.finished() ? batches.status().message() : "the service does not answer");
    use(batches.value(), batches.received());
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::printf("%zu batches, %.1f GB/s\n", num_batches, 1e-9 * kNumBytes * num_batches / took.count());
  batches.stop();
  axon::Call through(service, "through");
  through.start();
  if (!through.wait(10s) || !through.status().ok()) give_up("the service did not acknowledge the end of training");
  return 0;
}

}  // namespace

int main(int num_words, char** words) {
  if (num_words == 3 && std::strcmp(words[1], "serve") == 0) return serve(words[2]);
  if (num_words == 4 && std::strcmp(words[1], "train") == 0) return train(words[2], std::atoi(words[3]));
  give_up("usage: data_service serve FILE | train FILE BATCHES");
}
