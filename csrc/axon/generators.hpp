// A generator of C++ that a caller has opened.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "axon/gate.hpp"
#include "axon/generator.hpp"
#include "base/sync.hpp"
#include "engine/engine.hpp"
#include "rpc/core/generators/generators.hpp"

namespace axon::library {

// An open generator. A thread that finds it running leaves its request to the thread that runs it. That thread hands
// the rest to the next driving thread after a while, because it has other things to wait for.
class OpenGenerator final : public rpc::OpenGenerator,
                            public std::enable_shared_from_this<OpenGenerator>,
                            private engine::Submission {
 public:
  OpenGenerator(engine::Engine& engine, std::shared_ptr<Gate> gate, Generator generator)
      : engine_(engine), gate_(std::move(gate)), generator_(std::move(generator)) {}

  void next(rpc::Invocation& invocation) override;
  void close() noexcept override;
  // As close(), when the generator itself ends: values that were requested before are still wanted.
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

// Opens a generator for the caller.
void open_generator(Invocation& invocation, rpc::Generators& generators, std::shared_ptr<Gate> gate,
                    const GeneratorFunction& function);

}  // namespace axon::library
