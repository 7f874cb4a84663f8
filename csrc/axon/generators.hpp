// The open generators of a runtime, by caller and the caller's number (docs/wire.md).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "axon/gate.hpp"
#include "axon/generator.hpp"
#include "base/sync.hpp"
#include "engine/engine.hpp"
#include "rpc/core/connection.hpp"

namespace axon::library {

inline constexpr std::string_view kNext = "axon.next";
inline constexpr std::string_view kStop = "axon.stop";
inline constexpr std::string_view kNumber = "axon.number";  // the named argument that says that the caller iterates

// An open generator. A thread that finds it running leaves its request to the thread that runs it. That thread hands
// the rest to the next driving thread after a while, because it has other things to wait for.
class OpenGenerator : public std::enable_shared_from_this<OpenGenerator>, private engine::Submission {
 public:
  OpenGenerator(engine::Engine& engine, std::shared_ptr<Gate> gate, Generator generator)
      : engine_(engine), gate_(std::move(gate)), generator_(std::move(generator)) {}

  void next(Invocation invocation);
  // Ends the generator. It is destroyed when no thread is executing it.
  void close() noexcept;
  // The same, when the generator itself ends: values that were requested before are still wanted.
  void end() noexcept {
    has_ended_.store(true);
    close();
  }
  // Returns whether no caller wants its values.
  bool is_given_up() const noexcept { return is_closed_.load() && !has_ended_.load(); }

 private:
  bool is_closed() const noexcept { return is_closed_.load(); }
  void run(Invocation invocation) noexcept;
  void run_those_that_wait(std::unique_lock<std::mutex>& lock);

  // Submission, by a thread that has run it long enough
  void begin() noexcept override { engine_.post(*this); }
  void complete() noexcept override;

  engine::Engine& engine_;
  const std::shared_ptr<Gate> gate_;  // shared with the runtime
  Generator generator_;               // used by the thread that runs it
  int64_t num_asked_ = 0;
  sync::atomic<bool> has_ended_{false};
  sync::atomic<bool> is_closed_{false};
  std::mutex mutex_;  // guards the following members
  std::deque<Invocation> waiting_;
  bool is_running_ = false;
  std::shared_ptr<OpenGenerator> kept_;  // while it is submitted; shared with the runtime and the threads that run it
};

class Generators {
 public:
  // The gate is shared with the runtime.
  explicit Generators(std::shared_ptr<Gate> gate) : gate_(std::move(gate)) {}

  // Opens a generator and answers with the number that the caller chose.
  void open(Invocation& invocation, const GeneratorFunction& function);
  void next(Invocation& invocation);
  void stop(Invocation& invocation);
  // Closes the generators of a caller that is gone.
  void drop(const std::shared_ptr<rpc::Connection>& connection);
  void close() noexcept;

 private:
  struct Caller {
    std::unordered_map<int64_t, std::shared_ptr<OpenGenerator>> open;  // shared with the threads that run it
    // The latest stops. A stop may overtake requests for values, and the opening, whose arguments are larger.
    std::deque<int64_t> stopped;

    bool has_stopped(int64_t number) const noexcept;
  };

  // Returns why the generator cannot be opened; empty if it can.
  std::string add(const std::shared_ptr<rpc::Connection>& caller, int64_t number,
                  std::shared_ptr<OpenGenerator> generator);

  const std::shared_ptr<Gate> gate_;
  std::mutex mutex_;                                                      // guards the following members
  std::unordered_map<std::shared_ptr<rpc::Connection>, Caller> callers_;  // shared with the runtime
  size_t num_open_ = 0;
  bool is_closed_ = false;
};

}  // namespace axon::library
