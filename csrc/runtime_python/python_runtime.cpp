#include "runtime_python/python_runtime.hpp"

#include <utility>

#include "base/log.hpp"
#include "runtime/values.hpp"

namespace axon {

namespace py = pybind11;

// As good as for ever, without overflowing when it is added to a clock.
static constexpr std::chrono::hours kLongWait{24};

static py::module_ errors() {
  return py::module_::import("torch_axon.runtime._errors");
}

// With its traceback, which before Python 3.12 is kept apart from it.
static py::object exception_of(const py::error_already_set& error) {
  if (error.trace()) (void)PyException_SetTraceback(error.value().ptr(), error.trace().ptr());
  return error.value();
}

PythonInvocation::~PythonInvocation() {
  if (invocation_ != nullptr) invocation_->fail("RuntimeError", "the function has been dropped before it had answered");
}

void PythonInvocation::reply(const py::object& value) {
  if (invocation_ == nullptr) return;
  try {
    invocation_->answer.open();
    if (invocation_->wants_answer()) pack(invocation_->answer, value.ptr());
    invocation_->answer.seal();
  } catch (py::error_already_set& error) {
    return fail(exception_of(error));
  } catch (py::builtin_exception& error) {
    error.set_error();
    py::error_already_set raised;
    return fail(exception_of(raised));
  } catch (const std::exception& error) {  // torch's, of a tensor that cannot be read
    return fail("RuntimeError", error.what());
  }
  std::exchange(invocation_, nullptr)->reply();
}

void PythonInvocation::fail(std::string_view class_name, const std::string& message) {
  if (invocation_ == nullptr) return;
  std::exchange(invocation_, nullptr)->fail(class_name, message);
}

// [message, traceback, arguments of the exception, as far as they can be sent]
void PythonInvocation::fail(const py::object& exception) {
  if (invocation_ == nullptr) return;
  Outbound& answer = invocation_->answer;
  const py::tuple described = errors().attr("describe")(exception);
  const auto class_name = py::cast<std::string>(described[0]);
  const auto open = [&] {
    answer.open(std::string_view(class_name).substr(0, kLongestName));
    ValueWriter(answer.bytes()).array(3);
    pack(answer, described[1].ptr());
    pack(answer, described[2].ptr());
  };
  open();
  try {
    pack(answer, described[3].ptr());
  } catch (...) {
    PyErr_Clear();
    open();
    pack(answer, py::list(0).ptr());
  }
  answer.seal();
  std::exchange(invocation_, nullptr)->reply_failure();
}

void PythonRuntime::Queue::push(Item item) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!stopped_.load()) {
      items_.push_back(std::move(item));
      has_items_.store(true);
      return;
    }
  }
  if (item.invocation != nullptr) item.invocation->fail("ConnectionError", "the runtime is closed");
}

std::vector<PythonRuntime::Item> PythonRuntime::Queue::take(Clock::duration patience) {
  while (!stopped_.load()) {
    has_items_.store(false);
    {
      const std::lock_guard lock(mutex_);
      if (!items_.empty()) return std::exchange(items_, {});
    }
    engine_.wait(has_items_, Clock::now() + kLongWait, patience);
  }
  return {};
}

void PythonRuntime::Queue::stop() noexcept {
  std::vector<Item> left;
  {
    const std::lock_guard lock(mutex_);
    stopped_.store(true);
    left = std::exchange(items_, {});
  }
  for (const Item& item : left) {
    if (item.invocation != nullptr) item.invocation->fail("ConnectionError", "the runtime is closed");
  }
  has_items_.store(true);
  engine_.nudge();
}

PythonRuntime::PythonRuntime(RuntimeOptions options, py::object on_cancelled) : on_cancelled_(std::move(on_cancelled)) {
  Engine& engine = Engine::instance();
  Result<std::unique_ptr<Runtime>> opened = Runtime::open(std::move(options), engine);
  if (!opened.ok()) throw std::runtime_error(opened.status().message());
  runtime_ = std::move(opened).value();
  queue_ = std::make_shared<Queue>(engine);
  runtime_->core().set_fallback([queue = queue_](Invocation& invocation) { queue->push({.invocation = &invocation}); });
  runtime_->core().set_on_cancelled([queue = queue_](uint64_t serial) { queue->push({.cancelled_serial = serial}); });
}

PythonRuntime::~PythonRuntime() {
  close();
}

// Functions often refer to what owns the runtime, which is not to keep itself alive.
void PythonRuntime::close() {
  {
    const py::gil_scoped_release no_gil;
    runtime_->close();
  }
  const auto gone = std::exchange(functions_, {});
}

void PythonRuntime::add(const std::string& name, py::object function, Where where, const Placement& placement) {
  if (name.empty() || name.size() > kLongestName) {
    throw py::value_error("register: name is " + std::to_string(name.size()) + " bytes long; allowed: 1 to " +
                          std::to_string(kLongestName));
  }
  if (!functions_.try_emplace(name, PythonFunction{std::move(function), where, placement}).second) {
    throw py::value_error("register: there is a function '" + name + "' already");
  }
}

void PythonRuntime::serve(Clock::duration patience) {
  while (!queue_->has_stopped()) {
    std::vector<Item> items;
    {
      const py::gil_scoped_release no_gil;
      items = queue_->take(patience);
    }
    for (Item& item : items) {
      try {
        handle(item);
      } catch (py::error_already_set& error) {
        error.discard_as_unraisable("torch_axon.runtime");
      } catch (const std::exception& error) {
        log::info("a call of runtime '" + runtime_->name() + "' has been dropped: " + error.what());
      }
    }
  }
}

void PythonRuntime::stop() {
  queue_->stop();
}

void PythonRuntime::handle(Item& item) {
  if (item.invocation != nullptr) return invoke(*item.invocation);
  if (item.finished.get() != nullptr) {
    item.finished->take_waiter().attr("_run_callbacks")();
  } else {
    on_cancelled_(item.cancelled_serial);
  }
}

void PythonRuntime::invoke(Invocation& invocation) {
  PythonInvocation held(invocation, std::string(invocation.function()));
  try {
    const auto found = functions_.find(held.name());
    if (found == functions_.end()) {
      return held.fail("LookupError", "the runtime '" + runtime_->name() + "' has no function '" + held.name() + "'");
    }
    const PythonFunction function = found->second;
    Arguments arguments = unpack_arguments(invocation.arguments(), function.placement);
    if (function.where == Where::kDispatched) {
      py::object named = arguments.named ? std::move(arguments.named) : py::dict();
      function.call(py::cast(std::move(held)), arguments.positional, std::move(named));
      return;
    }
    const auto result = py::reinterpret_steal<py::object>(
        PyObject_Call(function.call.ptr(), arguments.positional.ptr(), arguments.named.ptr()));
    if (!result) throw py::error_already_set();
    held.reply(result);
  } catch (py::error_already_set& error) {
    held.fail(exception_of(error));
  } catch (py::builtin_exception& error) {
    error.set_error();
    const py::error_already_set raised;
    held.fail(exception_of(raised));
  } catch (const std::exception& error) {  // torch's, of a device that is not there or full
    held.fail("RuntimeError", error.what());
  }
}

}  // namespace axon
