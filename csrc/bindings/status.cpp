#include "bindings/status.hpp"

#include <pybind11/stl.h>

#include "engine/status_reader.hpp"

namespace axon {

namespace {

namespace py = pybind11;

const char* name_of(engine::CallState state) noexcept {
  switch (state) {
    case engine::CallState::kRunning:
      return "running";
    case engine::CallState::kAwaitsDevice:
      return "awaits its GPU";
    case engine::CallState::kFinished:
      return "finished";
    case engine::CallState::kFailed:
      return "failed";
    case engine::CallState::kLaunched:
      return "launched";
    default:
      return "unknown";
  }
}

// A cut text may begin within a character.
py::str text_of(const std::string& text) {
  return py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<py::ssize_t>(text.size()), "replace"));
}

py::dict dict_of(const engine::CallSnapshot& call) {
  py::dict row;
  row["text"] = text_of(call.text);
  row["operation"] = call.operation;
  row["state"] = name_of(call.state);
  row["sequence"] = call.sequence;
  row["peer"] = call.peer;
  row["is_replay"] = call.is_replay;
  row["waiter"] = call.waiter;
  row["called_at"] = static_cast<double>(call.called_at_ns) * 1e-9;
  row["call_site"] = text_of(call.call_site);
  return row;
}

py::object object_of(const std::optional<engine::CallSnapshot>& call) {
  return call ? py::object(dict_of(*call)) : py::object(py::none());
}

py::dict dict_of(const engine::GroupSnapshot& group) {
  py::list running;
  for (const engine::CallSnapshot& call : group.running) running.append(dict_of(call));
  py::dict row;
  row["name"] = text_of(group.name);
  row["identity"] = group.identity;
  row["rank"] = group.rank;
  row["size"] = group.size;
  row["num_on_host"] = group.num_on_host;
  row["failure"] = text_of(group.failure);
  row["latest"] = object_of(group.latest);
  row["replay"] = object_of(group.replay);
  row["running"] = running;
  row["num_unlisted"] = group.num_unlisted;
  row["num_launched"] = group.num_launched;
  row["launched"] = object_of(group.launched);
  row["message"] = object_of(group.message);
  row["captured"] = object_of(group.captured);
  py::list progress;
  for (const engine::DeviceProgress& each : group.progress)
    progress.append(py::make_tuple(each.rank, each.num_entered, text_of(each.call)));
  row["progress"] = progress;
  row["progress_read_at"] = static_cast<double>(group.progress_read_at_ns) * 1e-9;
  row["num_torn"] = group.num_torn;
  return row;
}

py::dict read_status(int descriptor) {
  Result<engine::ProcessStatus> status = engine::read_status(descriptor);
  if (!status.ok()) throw py::value_error(status.status().message());
  py::list groups;
  for (const engine::GroupSnapshot& group : status.value().groups) groups.append(dict_of(group));
  py::dict row;
  row["pid"] = status.value().pid;
  row["groups"] = groups;
  row["num_left_out"] = status.value().num_left_out;
  return row;
}

}  // namespace

void bind_status(py::module_& module) {
  module.def("read_status", &read_status, py::arg("descriptor"));
  module.def("ask_for_progress", &engine::ask_for_progress, py::arg("descriptor"));
}

}  // namespace axon
