// A runtime for Python: functions are Python's, and run on the thread that serves.
//
// What comes for Python is queued by whoever drives the engine, and taken by serve(), which holds Python's lock once
// for all that has come. Plain functions run there; others are called with the invocation itself, and see to it that
// it is answered.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc/core/runtime.hpp"
#include "rpc/python/python_call.hpp"
#include "rpc/python/values.hpp"

namespace axon::rpc_python {

class PythonRuntime;

// An invocation in Python's hands: answered once; with an error if it is dropped.
class PythonInvocation {
 public:
  // `runtime` finds the Runtime of Python's that it is an invocation of: a weak reference.
  PythonInvocation(rpc::Invocation& invocation, std::string name, pybind11::object runtime)
      : invocation_(&invocation),
        name_(std::move(name)),
        connection_(invocation.connection()),
        runtime_(std::move(runtime)) {}
  PythonInvocation(PythonInvocation&& other) noexcept
      : invocation_(std::exchange(other.invocation_, nullptr)),
        name_(std::move(other.name_)),
        connection_(std::move(other.connection_)),
        runtime_(std::move(other.runtime_)) {}
  ~PythonInvocation();

  const std::string& name() const noexcept { return name_; }
  uint64_t serial() const noexcept { return invocation_ == nullptr ? 0 : invocation_->serial(); }
  const std::string& caller() const noexcept { return connection_->identity().name; }
  const std::shared_ptr<rpc::Connection>& connection() const noexcept { return connection_; }
  // None once it is gone.
  pybind11::object runtime() const { return runtime_(); }
  bool is_answered() const noexcept { return invocation_ == nullptr; }
  bool wants_answer() const noexcept { return invocation_ != nullptr && invocation_->wants_answer(); }
  // Of one that has waited for long, as where the process was stopped, what has come since is looked at first.
  bool is_cancelled();
  // An answer that cannot be sent becomes an error of the function. Python's lock is held, as for all of these.
  void reply(const pybind11::object& value);
  void fail(const pybind11::object& exception);
  void fail(std::string_view class_name, const std::string& message);

 private:
  void write_failure(const pybind11::tuple& described);

  rpc::Invocation* invocation_;  // null once answered
  std::string name_;
  std::shared_ptr<rpc::Connection> connection_;  // owned with the runtime, which may be closed before
  pybind11::object runtime_;
};

// That of the plain function which this thread is running, on its way to Python, which may keep it; None elsewhere.
pybind11::object current_invocation();

class PythonRuntime {
 public:
  enum class Where : uint8_t { kHere, kDispatched };

  struct Listeners {
    pybind11::object runtime;       // a weak reference to Python's Runtime
    pybind11::object on_cancelled;  // gets the serial of an invocation whose caller has given up
    pybind11::object on_lost;       // gets a connection that has come to its end
  };

  PythonRuntime(std::unique_ptr<rpc::Runtime> runtime, Listeners listeners);
  ~PythonRuntime();

  rpc::Runtime& runtime() noexcept { return *runtime_; }
  std::shared_ptr<CompletionSink> completions() noexcept { return queue_; }
  std::shared_ptr<DestinationSink> destination_sinks() noexcept { return queue_; }

  struct PythonFunction {
    pybind11::object call;
    Where where;
    Placement placement;
    pybind11::object destinations;  // says where its arguments go, see ask_where(); or null
    pybind11::object iterate;       // dispatched to in the place of `call` where the caller iterates; null: it may not
  };
  void add(const std::string& name, PythonFunction function);

  // Runs until stop(), and then until nothing is left, with Python's lock held, but for waits.
  void serve(sync::Clock::duration spin_budget);
  void stop();
  // Whatever serve() has left, if it has not come back, is told that it is over; and so is what comes later.
  void end();
  void close();

 private:
  struct Item {
    enum class Kind : uint8_t { kInvoked, kArgumentsAnnounced, kAnswerAnnounced, kFinished, kCancelled, kLost };
    Kind kind;
    rpc::Invocation* invocation = nullptr;
    uint64_t serial = 0;
    rpc::Counted<PythonCall> call{};
    std::shared_ptr<rpc::Connection> connection{};
  };

  // What has come for Python. Its pushers hold no lock of Python's.
  class Queue final : public CompletionSink, public DestinationSink {
   public:
    explicit Queue(engine::Engine& engine) : engine_(engine) {}
    void push(rpc::Counted<PythonCall> call) noexcept override {
      push(Item{.kind = Item::Kind::kFinished, .call = std::move(call)});
    }
    void push_announced(rpc::Counted<PythonCall> call) noexcept override {
      push(Item{.kind = Item::Kind::kAnswerAnnounced, .call = std::move(call)});
    }
    void push(Item item) noexcept;
    // Waits for the first. None: stopped, and nothing comes any more.
    std::vector<Item> take(sync::Clock::duration spin_budget);
    void stop() noexcept;
    void end() noexcept;
    bool has_stopped() const noexcept { return stopped_.load(); }

   private:
    // Without anybody who serves: whoever waits for it hears that it is over.
    void give_up(Item item) noexcept;

    engine::Engine& engine_;
    std::mutex mutex_;  // guards items_, ended_
    std::vector<Item> items_;
    sync::atomic<bool> has_items_{false};
    std::atomic<bool> stopped_{false};
    bool ended_ = false;  // nobody takes items any more
  };

  void handle(Item& item);
  void invoke(rpc::Invocation& invocation);
  void run(rpc::Invocation& invocation, PythonInvocation& held);
  static void call_here(const PythonFunction& function, PythonInvocation& held, const Arguments& arguments);
  static void dispatch(const pybind11::object& function, PythonInvocation held, Arguments& arguments);
  void land_arguments(rpc::Invocation& invocation);
  void land_answer(PythonCall& call);

  std::unique_ptr<rpc::Runtime> runtime_;
  std::shared_ptr<Queue> queue_;  // owned with calls that tell it when they are finished
  const Listeners listeners_;
  std::unordered_map<std::string, PythonFunction> functions_;  // with Python's lock
};

}  // namespace axon::rpc_python
