// The C++ process: talks with a Python runtime whose address is in the given file. Names the first error that it finds,
// and exits with 1.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "axon/axon.hpp"

namespace axon::library {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kNumValues = 20;

void expect(bool is_true, const std::string& what) {
  if (is_true) return;
  std::fprintf(stderr, "not so: %s\n", what.c_str());
  std::exit(1);
}

template <typename T>
T value_of(Result<T> result) {
  expect(result.ok(), result.ok() ? "" : result.status().message());
  return std::move(result).value();
}

// Returns the elements of a tensor; every third one is large enough for a payload frame.
std::shared_ptr<std::vector<float>> elements_of(int64_t index) {
  return std::make_shared<std::vector<float>>(index % 3 == 0 ? 5000 : 3, static_cast<float>(index));
}

// Format: [index, tensor]
void write(Message message, int64_t index) {
  const auto elements = elements_of(index);
  message.array(2);
  message.integer(index);
  message.tensor(std::span<const float>(*elements), Owner::of(elements));
}

void expect_value(rpc::ValueReader values, const Tensor& tensor, int64_t index, const std::string& where) {
  expect(values.next().count == 2 && values.next().integer == index,
         where + ": the value of number " + std::to_string(index));
  const auto elements = tensor.as<float>();
  expect(std::ranges::equal(elements, *elements_of(index)), where + ": the tensor of number " + std::to_string(index));
}

Generator count(Received arguments) {
  return [end = arguments.argument("end").next().integer, index = int64_t{0}](Next& next) mutable {
    if (index == end) return next.fail("ValueError", "it counts no further");
    write(next.value(), index++);
    next.reply();
  };
}

void iterate(const Peer& python, const std::string& function) {
  Stream values(python, function, {.ahead = 4});
  values.arguments(1).integer(kNumValues);
  Message named = values.named(1);
  named.text("step");
  named.integer(1);
  values.start();
  int64_t index = 0;
  for (; values.next(10s); ++index) expect_value(values.value(), values.received().tensor(0), index, function);
  expect(values.finished() && index == kNumValues, function + " has made " + std::to_string(index) + " values");
  expect(values.status().message() == "ValueError", function + " has ended with " + values.status().message());
  expect(values.failure() == "it counts no further", function + " says " + std::string(values.failure()));
  expect(values.traceback().find("raise ValueError") != std::string_view::npos,
         function + " has failed at " + std::string(values.traceback()));
}

void talk(const Peer& python, Runtime& runtime) {
  Mailbox mailbox = value_of(runtime.mailbox("to_cpp", {.capacity = 2}));
  iterate(python, "count");
  iterate(python, "count_on_loop");
  Call failing(python, "fail");
  failing.request().array(2);
  failing.request().array(0);
  failing.request().nothing();
  failing.start();
  expect(failing.wait(10s), "fail has been answered");
  expect(failing.failure() == "as it is to", "fail says " + std::string(failing.failure()));
  expect(failing.traceback().find("raise ValueError") != std::string_view::npos,
         "fail has failed at " + std::string(failing.traceback()));
  const Outbox outbox = value_of(runtime.outbox(python, "to_python"));
  std::vector<Call> sent;
  for (int64_t i = 0; i < kNumValues; ++i) {
    write(sent.emplace_back(outbox).request(), i);
    sent.back().start();
  }
  Call call(python, "talk");
  Message request = call.request();
  request.array(2);
  request.array(1);
  request.binary(value_of(runtime.address()));
  request.nothing();
  call.start();
  for (int64_t i = 0; i < kNumValues; ++i) {
    const Mail mail = value_of(mailbox.take(10s));
    expect_value(mail.values(), mail.tensor(0), i, "mailbox");
  }
  expect(call.wait(30s) && call.status().ok(), "talk: " + std::string(call.failure()));
  for (Call& each : sent) expect(each.wait(10s) && each.status().ok(), "a message has not been accepted");
}

}  // namespace

void talk(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> address{std::istreambuf_iterator<char>(file), {}};
  Runtime runtime = value_of(Runtime::open({.name = "cpp"}));
  expect(runtime.add_generator("count", count).ok(), "add_generator");
  talk(value_of(runtime.connect(std::as_bytes(std::span(address)), 10s)), runtime);
}

}  // namespace axon::library

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  axon::library::talk(argv[1]);
}
