// A runtime for Python: its functions are Python functions, and run on the thread that serves.
//
// The thread that drives the engine queues what is for Python. serve() takes it from the queue, and holds the GIL once
// per batch. Plain functions run there. Other functions are called with the invocation itself, and must see to it that
// it is answered.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "rpc/core/generators/generators.hpp"
#include "rpc/core/mailboxes/mailboxes.hpp"
#include "rpc/core/runtime.hpp"
#include "rpc/python/python_call.hpp"
#include "rpc/python/values.hpp"

namespace axon::rpc_python {

class PythonMailbox;
class PythonRuntime;

// An invocation owned by Python. It is answered once; if it is dropped, with an error.
class PythonInvocation {
 public:
  // `runtime` is a weak reference to the Python Runtime that the invocation belongs to.
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
  // None if the runtime was destroyed.
  pybind11::object runtime() const { return runtime_(); }
  bool is_answered() const noexcept { return invocation_ == nullptr; }
  bool wants_answer() const noexcept { return invocation_ != nullptr && invocation_->wants_answer(); }
  // If the invocation has waited for long, for example while the process was stopped, messages that arrived since are
  // processed first.
  bool is_cancelled();
  // An answer that cannot be sent becomes an error of the function. The GIL is held, as for all of these.
  void reply(const pybind11::object& value);
  void fail(const pybind11::object& exception);
  void fail(std::string_view class_name, const std::string& message);
  // Leaves the answer to the caller; only while it is not answered.
  rpc::Invocation& hand_over() noexcept { return *std::exchange(invocation_, nullptr); }
  // See rpc::Invocation.
  void fail_as_given_up(std::string_view why = {});

 private:
  void write_failure(const pybind11::tuple& described);

  rpc::Invocation* invocation_;  // null after the answer
  std::string name_;
  std::shared_ptr<rpc::Connection> connection_;  // shared with the runtime, which may be closed first
  pybind11::object runtime_;
};

// Hands the invocation of the plain function that this thread runs to Python, which may keep it; None elsewhere.
pybind11::object current_invocation();

class PythonRuntime {
 public:
  enum class Where : uint8_t { kHere, kDispatched };

  struct Listeners {
    pybind11::object runtime;       // a weak reference to the Python Runtime, which is told of peers
    pybind11::object on_cancelled;  // receives the serial of an invocation whose caller has given up
    pybind11::object on_notified;   // called without arguments after a peer's notification that was watched for
  };

  PythonRuntime(std::unique_ptr<rpc::Runtime> runtime, Listeners listeners);
  ~PythonRuntime();

  rpc::Runtime& runtime() noexcept { return *runtime_; }
  std::shared_ptr<CompletionSink> completions() noexcept { return queue_; }
  std::shared_ptr<DestinationSink> destination_sinks() noexcept { return queue_; }

  struct PythonFunction {
    pybind11::object call{};
    Where where = Where::kHere;
    Placement placement{};
    pybind11::object destinations{};  // decides where the arguments go, see ask_where(); may be null
    pybind11::object iterate{};  // called in place of `call` if the caller iterates; null if iterating is not allowed
    std::shared_ptr<PythonMailbox> mailbox{};  // receives the calls in place of `call`; shared with Python
  };
  void add(const std::string& name, PythonFunction function);
  // Opens a generator whose functions are `next` and `close`, see PythonGenerator. It answers the invocation.
  void open_generator(PythonInvocation& invocation, int64_t number, pybind11::object next, Where where,
                      pybind11::object close);
  // Calls a function, which answers the invocation unless it is dispatched.
  static void answer(const pybind11::object& function, Where where, PythonInvocation held, Arguments& arguments);

  // Calls on_notified once, on the thread that serves, after the next notification. Returns false if there is one.
  bool watch_notifications();

  // Runs until stop(), and then until nothing is left. The GIL is held, except during waits.
  void serve(sync::Clock::duration spin_budget);
  void stop();
  // Ends everything that serve() left, if it did not return normally, and everything that arrives later.
  void end();
  void close();

 private:
  struct Item {
    enum class Kind : uint8_t {
      kInvoked,
      kArgumentsAnnounced,
      kAnswerAnnounced,
      kFinished,
      kCancelled,
      kConnected,
      kLost,
      kNotified
    };
    Kind kind;
    rpc::Invocation* invocation = nullptr;
    uint64_t serial = 0;
    rpc::Counted<PythonCall> call{};
    std::shared_ptr<rpc::Connection> connection{};
  };

  // Queue of work for Python. Threads that push hold no lock under which the GIL is taken.
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
    // Waits for the first item. Empty: stopped, and nothing arrives any more.
    std::vector<Item> take(sync::Clock::duration spin_budget);
    void stop() noexcept;
    void end() noexcept;
    bool has_stopped() const noexcept { return stopped_.load(); }

   private:
    // Ends an item that is not served any more: its waiters learn that the runtime has ended.
    void give_up(Item item) noexcept;

    engine::Engine& engine_;
    std::mutex mutex_;  // guards items_, ended_
    std::vector<Item> items_;
    sync::atomic<bool> has_items_{false};
    std::atomic<bool> stopped_{false};
    bool ended_ = false;  // items are not taken any more
  };

  void handle(Item& item);
  // Calls a method of the Python Runtime, if there still is one, with a connection.
  void tell_of_peer(const char* method, const std::shared_ptr<rpc::Connection>& connection);
  void invoke(rpc::Invocation& invocation);
  void run(rpc::Invocation& invocation, PythonInvocation& held);
  void run_own(PythonInvocation& held);
  static void call_here(const pybind11::object& function, PythonInvocation& held, const Arguments& arguments);
  static void dispatch(const pybind11::object& function, PythonInvocation held, Arguments& arguments);
  void land_arguments(rpc::Invocation& invocation);
  void land_answer(PythonCall& call);

  std::unique_ptr<rpc::Runtime> runtime_;
  std::shared_ptr<Queue> queue_;  // shared with calls that notify it when they finish
  const Listeners listeners_;
  std::unordered_map<std::string, PythonFunction> functions_;  // needs the GIL
  rpc::Mailboxes mailboxes_;
  rpc::Generators generators_;
};

}  // namespace axon::rpc_python
