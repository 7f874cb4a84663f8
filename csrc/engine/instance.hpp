// The process's own engine, configured by the environment. It starts when it is first asked for.
//
//   const EngineHold hold = hold_instance();   // throws std::runtime_error if the engine cannot start
//   hold.engine().form(…);                     // a fork meanwhile does not end the engine
//
// Functions may be called by any thread unless they say otherwise.
#pragma once

#include "engine/engine.hpp"

namespace axon::engine {

// Keeps the process's engine in use: end_unused_instance() does not end it while a hold exists.
class EngineHold {
 public:
  explicit EngineHold(Engine& engine) noexcept;
  ~EngineHold();
  EngineHold(const EngineHold&) = delete;
  EngineHold& operator=(const EngineHold&) = delete;

  Engine& engine() const noexcept { return engine_; }

 private:
  Engine& engine_;
};

Engine& instance();
// Like instance(), for a caller that is about to form a group or to open a client.
EngineHold hold_instance();
// Ends the process's engine, if there is one. For exit.
void shut_down_instance() noexcept;
// Ends the engine if no group and no runtime uses it. Called before a fork: the child can then start an engine, which
// UCX does not allow while the parent's engine lives. Does nothing in a callback of the engine. Call it without
// Python's lock.
void end_unused_instance() noexcept;

}  // namespace axon::engine
