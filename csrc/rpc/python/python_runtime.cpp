#include "rpc/python/python_runtime.hpp"

#include <utility>

#include "base/log.hpp"
#include "python/gil.hpp"
#include "python/signals.hpp"
#include "rpc/core/values.hpp"
#include "rpc/python/destinations.hpp"
#include "rpc/python/python_generator.hpp"
#include "rpc/python/python_mailbox.hpp"

namespace axon::rpc_python {

namespace py = pybind11;

// Practically unlimited, but does not overflow when it is added to a clock.
static constexpr std::chrono::hours kLongWait{24};

static py::tuple describe(const py::object& exception) {
  return py::module_::import("torch_axon.runtime._descriptions").attr("describe")(exception);
}

// Returns the exception with its traceback, which is stored separately before Python 3.12.
static py::object exception_of(const py::error_already_set& error) {
  if (error.trace()) (void)PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
  return error.value();
}

// Calls the object and discards the result; see python::call_or_sleep().
template <typename... Arguments>
static void run_python(const py::object& function, const Arguments&... arguments) {
  const py::tuple packed = py::make_tuple(arguments...);
  const auto result = py::reinterpret_steal<py::object>(python::call_or_sleep(function.ptr(), packed.ptr()));
  if (!result) throw py::error_already_set();
}

PythonInvocation::~PythonInvocation() {
  if (invocation_ != nullptr) invocation_->fail("RuntimeError", "the invocation was dropped before it was answered");
}

bool PythonInvocation::is_cancelled() {
  if (invocation_ == nullptr || invocation_->is_cancelled()) return true;
  engine::Engine& engine = connection_->engine();
  if (!engine.has_events_since(invocation_->handed_over_at())) [[likely]]
    return false;
  {
    const python::GilReleased no_gil;
    engine.catch_up();
  }
  return invocation_ == nullptr || invocation_->is_cancelled();
}

void PythonInvocation::reply(const py::object& value) {
  if (invocation_ == nullptr) return;
  try {
    invocation_->answer.open();
    if (invocation_->wants_answer()) pack(invocation_->answer, value.ptr(), *connection_);
    invocation_->answer.seal();
  } catch (py::error_already_set& error) {
    return fail(exception_of(error));
  } catch (py::builtin_exception& error) {
    error.set_error();
    py::error_already_set raised;
    return fail(exception_of(raised));
  } catch (const std::exception& error) {  // torch's error for a tensor that cannot be read
    return fail("RuntimeError", error.what());
  }
  std::exchange(invocation_, nullptr)->reply();
}

void PythonInvocation::fail(std::string_view class_name, const std::string& message) {
  if (invocation_ == nullptr) return;
  std::exchange(invocation_, nullptr)->fail(class_name, message);
}

void PythonInvocation::fail_as_given_up(std::string_view why) {
  if (invocation_ != nullptr) std::exchange(invocation_, nullptr)->fail_as_given_up(why);
}

// Format: [message, traceback, arguments, attributes] of the exception; without the latter two if these cannot be sent.
void PythonInvocation::write_failure(const py::tuple& described) {
  rpc::Outbound& answer = invocation_->answer;
  const auto class_name = py::cast<std::string>(described[0]);
  const auto write = [&](size_t num_parts) {
    answer.open(std::string_view(class_name).substr(0, rpc::kLongestName));
    rpc::ValueWriter(answer.bytes()).array(num_parts);
    for (size_t i = 1; i <= num_parts; ++i) pack(answer, described[i].ptr(), *connection_);
    answer.seal();
  };
  try {
    write(4);
  } catch (...) {
    PyErr_Clear();
    write(2);
  }
}

// The caller gets an answer, even if something fails on the way.
void PythonInvocation::fail(const py::object& exception) {
  if (invocation_ == nullptr) return;
  try {
    const py::tuple described = describe(exception);
    if (!wants_answer()) return fail(py::cast<std::string>(described[0]), py::cast<std::string>(described[1]));
    write_failure(described);
  } catch (const std::exception& error) {
    PyErr_Clear();
    return fail(Py_TYPE(exception.ptr())->tp_name, std::string("the exception cannot be described: ") + error.what());
  }
  std::exchange(invocation_, nullptr)->reply_failure();
}

namespace {

// Runs the callbacks of a call that finishes after serving has ended. The thread that drives runs them, once the call
// reports that it is finished, which happens after its sink is notified.
class LateCallbacks final : public engine::Submission {
 public:
  LateCallbacks(engine::Engine& engine, rpc::Counted<PythonCall> call) : engine_(engine), call_(std::move(call)) {}

 private:
  void begin() noexcept override { engine_.post(*this); }
  void complete() noexcept override {
    if (python::python_goes_on()) {
      const python::GilHeld gil;
      try {
        run_python(call_->take_waiter().attr("_run_callbacks"));
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("torch_axon.runtime");
      }
    }
    delete this;
  }

  engine::Engine& engine_;
  rpc::Counted<PythonCall> call_;
};

}  // namespace

// Returns a function's name as users know it: "axon.mailbox:news" is mailbox 'news'.
static std::string spoken(const std::string& name) {
  const size_t colon = name.starts_with(rpc::kOwnNames) ? name.find(':') : std::string::npos;
  if (colon == std::string::npos) return "function '" + name + "'";
  return name.substr(rpc::kOwnNames.size(), colon - rpc::kOwnNames.size()) + " '" + name.substr(colon + 1) + "'";
}

void PythonRuntime::Queue::push(Item item) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) {
      items_.push_back(std::move(item));
      has_items_.store(true);
      return;
    }
  }
  give_up(std::move(item));
}

std::vector<PythonRuntime::Item> PythonRuntime::Queue::take(sync::Clock::duration spin_budget) {
  while (true) {
    has_items_.store(false);
    {
      const std::lock_guard lock(mutex_);
      if (!items_.empty()) return std::exchange(items_, {});
      ended_ = stopped_.load();
      if (ended_) return {};
    }
    // Waits at most for the spin budget, although the engine may be busy for other threads, which drive it better
    // themselves.
    const bool has_items = spin_budget != sync::Clock::duration::zero() &&
                           engine_.wait(has_items_, sync::Clock::now() + spin_budget, spin_budget);
    if (!has_items) engine_.wait(has_items_, sync::Clock::now() + kLongWait, engine::Progress::kFollower);
  }
}

void PythonRuntime::Queue::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopped_.store(true);
  }
  has_items_.store(true);
  engine_.nudge();
}

void PythonRuntime::Queue::end() noexcept {
  std::vector<Item> left;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    left = std::exchange(items_, {});
  }
  for (Item& item : left) give_up(std::move(item));
}

void PythonRuntime::Queue::give_up(Item item) noexcept {
  if (item.invocation != nullptr) item.invocation->fail("ConnectionError", "the runtime is closed");
  if (item.kind == Item::Kind::kFinished) engine_.submit_after_completion(*new LateCallbacks(engine_, item.call));
}

PythonRuntime::PythonRuntime(std::unique_ptr<rpc::Runtime> runtime, Listeners listeners)
    : runtime_(std::move(runtime)),
      queue_(std::make_shared<Queue>(runtime_->core().engine())),
      listeners_(std::move(listeners)) {
  using Kind = Item::Kind;
  rpc::RuntimeCore& core = runtime_->core();
  core.hand_over_in_order();
  core.set_fallback([queue = queue_](rpc::Invocation& invocation) {
    queue->push({.kind = Kind::kInvoked, .invocation = &invocation});
  });
  core.set_on_cancelled(
      [queue = queue_](uint64_t serial) { queue->push({.kind = Kind::kCancelled, .serial = serial}); });
  const auto push = [queue = queue_](Kind kind) {
    return [queue, kind](rpc::Connection& connection) {
      queue->push({.kind = kind, .connection = connection.shared_from_this()});
    };
  };
  core.set_on_connected(push(Kind::kConnected));
  core.set_on_lost(push(Kind::kLost));
}

PythonRuntime::~PythonRuntime() {
  close();
  python::raise_soon_what_signals_raised();
}

// Functions often refer to the owner of the runtime; this cycle must not keep the runtime alive.
void PythonRuntime::close() {
  {
    const python::GilReleased no_gil;
    runtime_->close();
  }
  mailboxes_.close(Status(ErrorCode::kAborted, "the runtime '" + runtime_->name() + "' is closed"));
  generators_.close();
  const auto gone = std::exchange(functions_, {});
}

void PythonRuntime::add(const std::string& name, PythonFunction function) {
  if (name.empty() || name.size() > rpc::kLongestName) {
    throw py::value_error("register: name is " + std::to_string(name.size()) + " bytes long; allowed: 1 to " +
                          std::to_string(rpc::kLongestName));
  }
  const bool asks = static_cast<bool>(function.destinations);
  const std::shared_ptr<PythonMailbox> mailbox = function.mailbox;
  if (!functions_.try_emplace(name, std::move(function)).second) {
    throw py::value_error("register: function '" + name + "' already exists");
  }
  if (mailbox != nullptr) mailboxes_.add(name.substr(rpc::kMailboxes.size()), mailbox);
  if (!asks) return;  // the fallback finds it
  const auto push = [queue = queue_](Item::Kind kind) {
    return [queue, kind](rpc::Invocation& invocation) { queue->push({.kind = kind, .invocation = &invocation}); };
  };
  const python::GilReleased no_gil;
  [[maybe_unused]] const Status added =  // the name is new, and its length was checked
      runtime_->core().add(name, push(Item::Kind::kInvoked), push(Item::Kind::kArgumentsAnnounced));
}

void PythonRuntime::serve(sync::Clock::duration spin_budget) {
  python::note_thread_of_runtime();
  while (true) {
    std::vector<Item> items;
    {
      const python::GilReleased no_gil;
      items = queue_->take(spin_budget);
    }
    if (items.empty()) return;
    for (Item& item : items) {
      try {
        handle(item);
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("torch_axon.runtime");
      } catch (const std::exception& error) {
        log::info("a call of runtime '" + runtime_->name() + "' was dropped: " + error.what());
      }
    }
  }
}

void PythonRuntime::stop() {
  queue_->stop();
}

void PythonRuntime::end() {
  const python::GilReleased no_gil;
  queue_->end();
}

void PythonRuntime::handle(Item& item) {
  if (item.invocation != nullptr && queue_->has_stopped()) {
    return item.invocation->fail("ConnectionError", "the runtime is closed");
  }
  switch (item.kind) {
    case Item::Kind::kInvoked:
      return invoke(*item.invocation);
    case Item::Kind::kArgumentsAnnounced:
      return land_arguments(*item.invocation);
    case Item::Kind::kAnswerAnnounced:
      return land_answer(*item.call);
    case Item::Kind::kFinished:
      run_python(item.call->take_waiter().attr("_run_callbacks"));
      return;
    case Item::Kind::kCancelled:
      run_python(listeners_.on_cancelled, item.serial);
      return;
    case Item::Kind::kConnected:
      return tell_of_peer("_on_connected", item.connection);
    case Item::Kind::kLost:
      mailboxes_.drop(*item.connection);
      generators_.drop(*item.connection);
      return tell_of_peer("_on_lost", item.connection);
    case Item::Kind::kNotified:
      return run_python(listeners_.on_notified);
  }
}

void PythonRuntime::tell_of_peer(const char* method, const std::shared_ptr<rpc::Connection>& connection) {
  const py::object runtime = listeners_.runtime();
  if (!runtime.is_none()) run_python(runtime.attr(method), connection);
}

bool PythonRuntime::watch_notifications() {
  return runtime_->core().exposed()->notifications.watch(
      [queue = queue_] { queue->push({.kind = Item::Kind::kNotified}); });
}

// Calls `run`, and passes its exceptions to `fail` as Python exceptions.
template <typename Run, typename Fail>
static void guarded(Run run, Fail fail) {
  try {
    run();
  } catch (py::error_already_set& error) {
    fail(exception_of(error));
  } catch (py::builtin_exception& error) {
    error.set_error();
    const py::error_already_set raised;
    fail(exception_of(raised));
  } catch (const std::exception& error) {  // torch's error for a device that is missing or full
    fail(py::reinterpret_borrow<py::object>(PyExc_RuntimeError)(error.what()));
  }
}

void PythonRuntime::land_arguments(rpc::Invocation& invocation) {
  const std::string name(invocation.function());
  const auto run = [&] {
    const auto found = functions_.find(name);
    if (found == functions_.end()) throw py::key_error("the runtime is closed");
    const py::object destinations = found->second.destinations;
    Destinations to = ask_where(destinations, invocation.arguments(), *invocation.connection());
    const python::GilReleased no_gil;
    invocation.accept(to.buffers, to.owners);
  };
  guarded(run,
          [&](const py::object& exception) { PythonInvocation(invocation, name, listeners_.runtime).fail(exception); });
}

void PythonRuntime::land_answer(PythonCall& call) {
  if (call.finished()) return;
  const auto run = [&] {
    Destinations to = ask_where(call.where(), call.reply(), call.connection());
    const python::GilReleased no_gil;
    call.connection().accept(call, to.buffers, to.owners);
  };
  guarded(run, [&](const py::object& exception) {
    call.set_destination_error(exception);
    const python::GilReleased no_gil;
    call.connection().decline(call, Status(ErrorCode::kInvalidArgument, "there is no destination for the answer"));
  });
}

namespace {

// Call of a plain function, on the thread that runs it.
class CallHere {
 public:
  explicit CallHere(PythonInvocation& own) noexcept : own_(own), outer_(std::exchange(latest_, this)) {}
  CallHere(const CallHere&) = delete;
  CallHere& operator=(const CallHere&) = delete;
  ~CallHere() { latest_ = outer_; }

  static CallHere* latest() noexcept { return latest_; }

  PythonInvocation& invocation() { return handed_out_ ? handed_out_.cast<PythonInvocation&>() : own_; }
  // Few functions request it, so the Python object is created only on demand.
  py::object hand_out() {
    if (!handed_out_) handed_out_ = py::cast(std::move(own_));
    return handed_out_;
  }

 private:
  static thread_local CallHere* latest_;

  PythonInvocation& own_;
  py::object handed_out_;
  CallHere* const outer_;
};

thread_local CallHere* CallHere::latest_ = nullptr;

}  // namespace

py::object current_invocation() {
  return CallHere::latest() == nullptr ? py::none() : CallHere::latest()->hand_out();
}

void PythonRuntime::call_here(const py::object& function, PythonInvocation& held, const Arguments& arguments) {
  CallHere call(held);
  const auto run = [&] {
    const auto result = py::reinterpret_steal<py::object>(
        python::call_or_sleep(function.ptr(), arguments.positional.ptr(), arguments.named.ptr()));
    if (!result) throw py::error_already_set();
    if (PyCoro_CheckExact(result.ptr()) == 0) [[likely]]
      return call.invocation().reply(result);
    const py::object handed_out = call.hand_out();  // a decorated coroutine
    handed_out.attr("runtime").attr("_run_coroutine")(handed_out, result);
  };
  guarded(run, [&](const py::object& exception) { call.invocation().fail(exception); });
}

// From here on Python owns the invocation, even if it fails to start it.
void PythonRuntime::dispatch(const py::object& function, PythonInvocation held, Arguments& arguments) {
  const py::object handed_over = py::cast(std::move(held));
  const py::object named = arguments.named ? std::move(arguments.named) : py::dict();
  guarded([&] { run_python(function, handed_over, arguments.positional, named); },
          [&](const py::object& exception) { handed_over.cast<PythonInvocation&>().fail(exception); });
}

void PythonRuntime::answer(const py::object& function, Where where, PythonInvocation held, Arguments& arguments) {
  if (where == Where::kDispatched) return dispatch(function, std::move(held), arguments);
  call_here(function, held, arguments);
}

void PythonRuntime::open_generator(PythonInvocation& invocation, int64_t number, py::object next, Where where,
                                   py::object close) {
  auto generator = std::make_shared<PythonGenerator>(PythonGenerator::Functions{
      .next = std::move(next), .where = where, .close = std::move(close), .runtime = listeners_.runtime});
  generators_.open(invocation.hand_over(), number, std::move(generator));
}

// Returns whether the caller wants to iterate, as an argument tells.
static bool is_iterated(const Arguments& arguments) {
  static PyObject* const number = PyUnicode_InternFromString(rpc::kNumber.data());
  return arguments.named && PyDict_Contains(arguments.named.ptr(), number) == 1;
}

void PythonRuntime::invoke(rpc::Invocation& invocation) {
  PythonInvocation held(invocation, std::string(invocation.function()), listeners_.runtime);
  if (held.is_cancelled()) return held.fail_as_given_up();
  guarded([&] { run(invocation, held); }, [&](const py::object& exception) { held.fail(exception); });
}

// Calls a function of the runtime itself.
void PythonRuntime::run_own(PythonInvocation& held) {
  if (held.name() == rpc::kNext) return generators_.next(held.hand_over());
  if (held.name() == rpc::kStop) return generators_.stop(held.hand_over());
  if (held.name() == rpc::kSettled) {
    return static_cast<void>(mailboxes_.settle(held.hand_over()));  // the end of the connection is reported later
  }
  held.fail("LookupError", "the runtime '" + runtime_->name() + "' has no " + spoken(held.name()));
}

void PythonRuntime::run(rpc::Invocation& invocation, PythonInvocation& held) {
  const auto found = functions_.find(held.name());
  if (found == functions_.end()) return run_own(held);
  const PythonFunction function = found->second;
  if (function.mailbox != nullptr) return function.mailbox->arrive(held, invocation.arguments());
  Arguments arguments = unpack_arguments(invocation.arguments(), function.placement, *held.connection());
  if (is_iterated(arguments)) {
    if (function.iterate) return dispatch(function.iterate, std::move(held), arguments);
    return held.fail("TypeError", "'" + held.name() + "' is not a generator function; use invoke()");
  }
  answer(function.call, function.where, std::move(held), arguments);
}

}  // namespace axon::rpc_python
