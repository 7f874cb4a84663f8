// Functions that answer more than once: generators, whose values callers ask for a few ahead of their use.
//
//   runtime.add_generator("count", [](axon::Received arguments) -> axon::Generator {
//     return [number = 0](axon::Next& next) mutable {
//       if (number == 10) return next.end();
//       next.value().integer(number++);
//       next.reply();
//     };
//   });
//
// No more values are made than are asked for, so a caller that is slow holds the generator back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "axon/invocation.hpp"
#include "axon/message.hpp"

namespace axon::library {

class OpenGenerator;

// A value that is asked for. To make it later, on any thread, move it away: several may be under way then, and arrive
// in the order in which they were asked for. One that is dropped without an answer fails.
class Next {
 public:
  Next(Invocation invocation, std::shared_ptr<OpenGenerator> generator, int64_t count) noexcept;
  Next(Next&& other) noexcept = default;
  Next& operator=(Next&& other) noexcept;
  ~Next();

  // Nobody wants it any more. Any thread.
  bool is_cancelled() const noexcept;

  // To be filled in with one value before reply(); what it borrows has to stay as for Invocation::answer().
  Message value();
  // One of these, once. After the latter two the generator is not called any more.
  void reply() noexcept;
  void end() noexcept;
  void fail(std::string_view class_name, std::string_view message) noexcept;

  bool is_answered() const noexcept { return invocation_.is_answered(); }

 private:
  Invocation invocation_;
  std::shared_ptr<OpenGenerator> generator_;  // owned with the runtime, and whoever runs it
  int64_t count_;
  bool has_value_ = false;
};

// Called as a Handler, but by one thread at a time. It is destroyed when it has ended, its caller stops or is gone, or
// its runtime is closed.
using Generator = std::function<void(Next& next)>;
// Called as a Handler with the arguments, which are there until it returns.
using GeneratorFunction = std::function<Generator(Received arguments)>;

}  // namespace axon::library
