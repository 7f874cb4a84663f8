#include "rpc/python/bindings.hpp"

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "base/config.hpp"
#include "base/interrupts.hpp"
#include "engine/instance.hpp"
#include "python/gil.hpp"
#include "python/signals.hpp"
#include "python/tensor_memory.hpp"
#include "rpc/python/buffers.hpp"
#include "rpc/python/call_members.hpp"
#include "rpc/python/errors.hpp"
#include "rpc/python/one_sided.hpp"
#include "rpc/python/python_mailbox.hpp"
#include "rpc/python/python_pool.hpp"
#include "rpc/python/python_runtime.hpp"
#include "rpc/python/waits.hpp"
#include "rpc/python/zero_copy_get.hpp"

namespace axon::rpc_python {
namespace {

namespace py = pybind11;

std::span<const std::byte> bytes_of(const py::bytes& bytes) {
  const std::string_view view(bytes);
  return std::as_bytes(std::span(view));
}

rpc::Secret secret_of(const py::bytes& secret) {
  return value_or_raise(rpc::Secret::from(bytes_of(secret)));
}

// `bounds` holds the options of the same names.
std::unique_ptr<PythonRuntime> open(std::string name, py::object runtime, py::object on_cancelled,
                                    py::object on_notified, const py::dict& bounds) {
  const auto bound = [&](const char* what) { return py::cast<uint64_t>(bounds[what]); };
  rpc::RuntimeOptions options{.name = std::move(name),
                              .max_message_num_bytes = bound("max_message_bytes"),
                              .max_waiting_calls = bound("max_waiting_calls"),
                              .max_running_calls = bound("max_running_calls"),
                              .max_connections = bound("max_connections"),
                              .accepts_exposed = true};
  const engine::EngineHold hold = engine::hold_instance();
  Result<std::unique_ptr<rpc::Runtime>> opened = rpc::Runtime::open(std::move(options), hold.engine());
  if (!opened.ok()) {
    if (opened.status().code() == ErrorCode::kInvalidArgument) raise(opened.status());
    throw std::runtime_error(opened.status().message());  // the engine cannot start
  }
  return std::make_unique<PythonRuntime>(std::move(opened).value(),
                                         PythonRuntime::Listeners{.runtime = std::move(runtime),
                                                                  .on_cancelled = std::move(on_cancelled),
                                                                  .on_notified = std::move(on_notified)});
}

rpc::Counted<PythonCall> packed(rpc::Connection& connection, std::string_view function, const py::tuple& positional,
                                const py::dict& named, double timeout_s) {
  if (function.empty() || function.size() > rpc::kLongestName) {
    throw py::value_error("invoke: function's name is " + std::to_string(function.size()) +
                          " bytes long; allowed: 1 to " + std::to_string(rpc::kLongestName));
  }
  auto call = rpc::Counted<PythonCall>::adopt(*new PythonCall(connection));
  call->request.open(function);
  pack_arguments(call->request, positional.ptr(), named.ptr(), connection);
  call->request.seal();
  call->timeout = std::chrono::ceil<std::chrono::milliseconds>(timeout_of(timeout_s));
  return call;
}

// Runs with the GIL held: it neither waits nor takes a lock whose holders may take the GIL.
rpc::Counted<PythonCall> invoke(rpc::Connection& connection, std::string_view function, const py::tuple& positional,
                                const py::dict& named, double timeout_s, bool is_awaited) {
  rpc::Counted<PythonCall> call = packed(connection, function, positional, named, timeout_s);
  if (!is_awaited) call->answer = rpc::Call::Answer::kNone;
  connection.start(*call);
  return call;
}

// Sends a message with one value to the peer's mailbox of this tag. Runs with the GIL held, as invoke() does.
rpc::Counted<PythonCall> send(rpc::Connection& connection, std::string_view tag, const py::object& value,
                              double timeout_s) {
  constexpr size_t kLongestTag = rpc::kLongestName - rpc::kMailboxes.size();
  if (tag.size() > kLongestTag) {
    throw py::value_error("send: tag is " + std::to_string(tag.size()) + " bytes long; allowed: up to " +
                          std::to_string(kLongestTag));
  }
  auto call = rpc::Counted<PythonCall>::adopt(*new PythonCall(connection));
  call->request.open(std::string(rpc::kMailboxes).append(tag));
  rpc::MailSender::write_header(call->request.bytes());
  pack_message(call->request, value.ptr(), connection);
  rpc::ValueWriter(call->request.bytes()).nothing();
  call->request.seal();
  call->is_mail = true;
  call->timeout = std::chrono::ceil<std::chrono::milliseconds>(timeout_of(timeout_s));
  connection.start(*call);
  return call;
}

bool await_end(rpc::Connection& connection, double timeout_s) {
  return wait_for(timeout_s, [&](sync::Clock::time_point time) { return connection.await_end(time); });
}

// Handles tell_readable_gpus() of the peer.
void expose_on(rpc::Connection& connection, const std::vector<std::string>& uuids) {
  const python::GilReleased no_gil;
  connection.zero_copy.gpus_read_by_peer.store(own_gpus_among(uuids));
}

py::list waiters_of(const CompletionQueue::Calls& calls) {
  py::list waiters(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) waiters[i] = calls[i]->take_waiter();
  return waiters;
}

// Calls a function; `where`, which the runtime's thread calls, decides where the tensors of the answer go.
rpc::Counted<PythonCall> invoke_into(PythonRuntime& self, rpc::Connection& connection, std::string_view function,
                                     const py::tuple& positional, const py::dict& named, double timeout_s,
                                     py::object where) {
  rpc::Counted<PythonCall> call = packed(connection, function, positional, named, timeout_s);
  call->ask_destinations(self.destination_sinks(), std::move(where));
  connection.start(*call);
  return call;
}

// None: the loop need not drive any more.
py::object drive(CompletionQueue& queue) {
  const auto calls = [&] {
    const python::GilReleased no_gil;
    return queue.drive();
  }();
  return calls ? py::object(waiters_of(*calls)) : py::none();
}

uint16_t listen(PythonRuntime& self, std::string host, uint16_t port, const py::bytes& secret) {
  const rpc::Secret known = secret_of(secret);
  auto listening = [&] {
    const python::GilReleased no_gil;
    auto result = self.runtime().listen({.host = std::move(host), .port = port}, known);
    python::block_if_runtimes_end();
    return result;
  }();
  python::raise_what_signals_raised();
  return value_or_raise(std::move(listening));
}

py::bytes address(PythonRuntime& self, const std::string& host) {
  const std::vector<std::byte> bytes = value_or_raise(self.runtime().address(host));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

template <typename Connect>
std::shared_ptr<rpc::Connection> connect(Connect connect) {
  auto connected = [&] {
    const python::GilReleased no_gil;
    auto result = connect();
    python::block_if_runtimes_end();
    return result;
  }();
  python::raise_what_signals_raised();
  return value_or_raise(std::move(connected));
}

std::shared_ptr<rpc::Connection> connect_address(PythonRuntime& self, const py::bytes& address, double timeout_s) {
  const auto bytes = bytes_of(address);
  return connect([&] { return self.runtime().connect(bytes, deadline_in(timeout_s)); });
}

py::dict counts(PythonRuntime& self) {
  py::dict row;
  const std::optional<rpc::Listener::Counts> counts = self.runtime().counts();
  if (!counts) return row;
  row["met"] = counts->num_met;
  row["malformed"] = counts->num_malformed;
  row["other_version"] = counts->num_other_version;
  row["wrong_secret"] = counts->num_wrong_secret;
  row["refused"] = counts->num_refused;
  row["late"] = counts->num_late;
  row["hung_up"] = counts->num_hung_up;
  return row;
}

// close() follows in any case.
bool await_idle(PythonRuntime& self, double timeout_s) {
  return wait_for(timeout_s, [&](sync::Clock::time_point time) { return self.runtime().await_idle(time); });
}

std::shared_ptr<PythonMailReceiver> receive(PythonMailbox& self) {
  auto receiver = std::make_shared<PythonMailReceiver>();
  self.receive(receiver);
  return receiver;
}

void bind_mailbox(py::module_& module) {
  py::class_<PythonMailReceiver, std::shared_ptr<PythonMailReceiver>>(module, "RuntimeMailReceiver")
      .def_property_readonly("over", [](const PythonMailReceiver& self) { return self.over().load(); })
      .def("watch", &PythonMailReceiver::watch);
  py::class_<PythonMailbox, std::shared_ptr<PythonMailbox>>(module, "RuntimeMailbox")
      .def("probe", [](const PythonMailbox& self) { return self.probe(); })
      .def("receive", &receive)
      .def("take", &PythonMailbox::take)
      .def("withdraw", &PythonMailbox::withdraw)
      .def("give_up", &PythonMailbox::give_up);
}

void bind_pool(py::module_& module) {
  py::class_<rpc::MemoryPool, std::shared_ptr<rpc::MemoryPool>>(module, "RuntimePool")
      .def(py::init(&make_pool))
      .def("take", &take_tensor_from)
      .def_property_readonly("num_bytes",
                             py::cpp_function(&rpc::MemoryPool::num_bytes, py::call_guard<python::GilReleased>()));
}

void bind_connection(py::module_& module) {
  py::class_<PythonCall, rpc::Counted<PythonCall>> call(module, "RuntimeCall");
  add_call_members(call, [](PythonCall& self) -> PythonCall& { return self; });
  call.def("cancel", [](PythonCall& self) { self.connection().cancel(self); }, py::call_guard<python::GilReleased>());
  py::class_<rpc::Connection, std::shared_ptr<rpc::Connection>>(module, "RuntimeConnection")
      .def_property_readonly("name", [](const rpc::Connection& self) { return text_of(self.identity().name); })
      .def_property_readonly("incarnation", [](const rpc::Connection& self) { return self.identity().incarnation; })
      .def("invoke", &invoke)
      .def("send", &send)
      .def("expose_on", &expose_on)
      .def(
          "close", [](rpc::Connection& self, double timeout_s) { self.close(deadline_in(timeout_s)); },
          py::call_guard<python::GilReleased>())
      .def("await_end", &await_end)
      .def("has_drained", &rpc::Connection::has_drained, py::call_guard<python::GilReleased>())
      .def_property_readonly("gpus_read_by_peer",
                             [](const rpc::Connection& self) { return self.zero_copy.gpus_read_by_peer.load(); })
      .def("failure", [](rpc::Connection& self) -> py::object {
        const Status failure = [&] {
          const python::GilReleased no_gil;
          return self.failure();
        }();
        if (failure.ok()) return py::none();
        return py::make_tuple(name_of(failure.code()), text_of(failure.message()));
      });
  py::class_<CompletionQueue, std::shared_ptr<CompletionQueue>>(module, "CompletionQueue")
      .def(py::init([] { return std::make_shared<CompletionQueue>(engine::instance()); }))
      .def("fileno", &CompletionQueue::fd)
      .def("begin_driving", &CompletionQueue::begin_driving)
      .def("stop_driving", &CompletionQueue::stop_driving)
      .def("drive", &drive)
      .def("take", [](CompletionQueue& self) { return waiters_of(self.take()); })
      .def("close", [](CompletionQueue& self) { return waiters_of(self.close()); });
}

PythonRuntime::Where where_of(bool is_dispatched) noexcept {
  return is_dispatched ? PythonRuntime::Where::kDispatched : PythonRuntime::Where::kHere;
}

void bind_invocation(py::module_& module) {
  py::class_<PythonInvocation>(module, "RuntimeInvocation")
      .def_property_readonly("name", [](const PythonInvocation& self) { return text_of(self.name()); })
      .def_property_readonly("serial", &PythonInvocation::serial)
      .def_property_readonly("caller", [](const PythonInvocation& self) { return text_of(self.caller()); })
      .def_property_readonly("connection", &PythonInvocation::connection)
      .def_property_readonly("runtime", &PythonInvocation::runtime)
      .def_property_readonly("is_answered", &PythonInvocation::is_answered)
      .def_property_readonly("wants_answer", &PythonInvocation::wants_answer)
      .def_property_readonly("is_cancelled", &PythonInvocation::is_cancelled)
      .def("reply", &PythonInvocation::reply)
      .def("fail", py::overload_cast<const py::object&>(&PythonInvocation::fail))
      .def("fail_as_given_up", &PythonInvocation::fail_as_given_up, py::arg("why") = "");
}

}  // namespace

void bind_runtime(py::module_& module) {
  interrupts::set_check(&python::are_signals_raising);
  module.def("note_end_of_runtimes", &python::note_end_of_runtimes);
  module.def("note_thread_of_runtime", &python::note_thread_of_runtime);
  module.def("block_if_runtimes_end", &block_if_runtimes_end);
  bind_connection(module);
  bind_mailbox(module);
  bind_pool(module);
  module.def("tensor_of_buffer", &tensor_of_buffer);
  module.def("check_capsule", &check_capsule);
  module.def("lack_of_memory", &python::lack_of_memory);
  module.def("current_invocation", &current_invocation);
  bind_invocation(module);
  bind_one_sided(module);
  py::class_<PythonRuntime>(module, "RuntimeCore")
      .def(py::init(&open))
      .def_property_readonly("incarnation", [](PythonRuntime& self) { return self.runtime().incarnation(); })
      .def("register",
           [](PythonRuntime& self, const std::string& name, py::object function, bool is_dispatched,
              const py::object& device, py::object destinations, py::object iterate) {
             self.add(name, {.call = std::move(function),
                             .where = where_of(is_dispatched),
                             .placement = placement_of(device),
                             .destinations = destinations.is_none() ? py::object() : std::move(destinations),
                             .iterate = iterate.is_none() ? py::object() : std::move(iterate)});
           })
      .def("open_generator",
           [](PythonRuntime& self, PythonInvocation& invocation, int64_t number, py::object next, bool is_dispatched,
              py::object close) {
             self.open_generator(invocation, number, std::move(next), where_of(is_dispatched), std::move(close));
           })
      .def("mailbox",
           [](PythonRuntime& self, const std::string& tag, size_t capacity, const py::object& device,
              py::object destinations) {
             auto mailbox = std::make_shared<PythonMailbox>(capacity, placement_of(device));
             self.add(
                 std::string(rpc::kMailboxes).append(tag),
                 {.destinations = destinations.is_none() ? py::object() : std::move(destinations), .mailbox = mailbox});
             return mailbox;
           })
      .def("invoke_into", &invoke_into)
      .def_static("known_secret", [] { return py::bytes(config::text("AXON_SECRET")); })
      .def("listen", &listen)
      .def("address", &address)
      .def("counts", &counts)
      .def(
          "num_connections", [](PythonRuntime& self) { return self.runtime().core().num_connections(); },
          py::call_guard<python::GilReleased>())
      .def("connect_address", &connect_address)
      .def("connect_host",
           [](PythonRuntime& self, const std::string& host, uint16_t port, const py::bytes& secret, double timeout) {
             const rpc::Secret known = secret_of(secret);
             return connect([&] { return self.runtime().connect({host, port}, known, deadline_in(timeout)); });
           })
      .def(
          "undo_connect", [](PythonRuntime& self, rpc::Connection& of) { self.runtime().undo_connect(of); },
          py::call_guard<python::GilReleased>())
      .def("serve",
           [](PythonRuntime& self, double spin_budget) {
             self.serve(std::chrono::duration_cast<sync::Clock::duration>(std::chrono::duration<double>(spin_budget)));
           })
      .def("stop", &PythonRuntime::stop, py::call_guard<python::GilReleased>())
      .def("end", &PythonRuntime::end)
      .def("await_idle", &await_idle)
      .def("close", [](PythonRuntime& self) {
        self.close();
        python::raise_what_signals_raised();
      });
}

}  // namespace axon::rpc_python
