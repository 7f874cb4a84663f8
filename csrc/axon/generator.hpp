// Generators: functions whose values callers request a few at a time, ahead of their use.
//
//   runtime.add_generator("count", [](axon::Received arguments) -> axon::Generator {
//     return [number = 0](axon::Next& next) mutable {
//       if (number == 10) return next.end();
//       next.value().integer(number++);
//       next.reply();
//     };
//   });
//
// A generator produces no more values than are requested, so a slow caller holds it back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "axon/invocation.hpp"
#include "axon/message.hpp"

namespace axon::library {

class OpenGenerator;

/// A requested value. To produce it later, on any thread, move it: several may be in progress then, and arrive in the
/// order of the requests. A request that is destroyed without an answer fails.
class Next {
 public:
  Next(Invocation invocation, std::shared_ptr<OpenGenerator> generator, int64_t count) noexcept;
  Next(Next&& other) noexcept = default;
  Next& operator=(Next&& other) noexcept;
  ~Next();

  /// May be called on any thread.
  /// @return whether the caller no longer wants the value
  bool is_cancelled() const noexcept;

  /// @return the message to write one value into before reply(). Memory that it references must stay valid as for
  ///   Invocation::answer().
  Message value();
  /// Sends the value. Exactly one of reply(), end() and fail() is called, once.
  void reply() noexcept;
  /// Ends the generator, which is not called again.
  void end() noexcept;
  /// Ends the generator with an error at the caller, and it is not called again.
  /// @param class_name the class of the error; for Python a name such as "ValueError"
  /// @param message the text of the error
  void fail(std::string_view class_name, std::string_view message) noexcept;

  /// @return whether one of these has been called
  bool is_answered() const noexcept { return invocation_.is_answered(); }

 private:
  Invocation invocation_;
  std::shared_ptr<OpenGenerator> generator_;  // shared with the runtime and the threads that run it
  int64_t count_;
  bool has_value_ = false;
};

/// A function that produces values. It is called like a Handler, but by one thread at a time. It is destroyed when it
/// has ended, its caller stops or is gone, or its runtime is closed.
using Generator = std::function<void(Next& next)>;
/// A function that opens a generator. It is called like a Handler with the arguments, which are valid until it returns.
using GeneratorFunction = std::function<Generator(Received arguments)>;

}  // namespace axon::library
