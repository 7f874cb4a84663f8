// torch_axon._C: the backend's Python bindings, without logic of their own.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "base/config.hpp"
#include "bindings/status.hpp"
#include "c10d/backend.hpp"
#include "c10d/hook_in_progress.hpp"
#include "c10d/prepared_transfer.hpp"
#include "collectives/choices.hpp"
#include "collectives/selector.hpp"
#include "engine/instance.hpp"
#include "fused/at_once.hpp"
#include "python/gil.hpp"
#include "python/signals.hpp"
#include "rpc/python/bindings.hpp"
#include "transport/rails/rail_address.hpp"
#include "transport/ucx/ucx.hpp"

namespace axon {
namespace {

namespace py = pybind11;

const char* name_of(config::ReadBy reader) noexcept {
  switch (reader) {
    case config::ReadBy::kImport:
      return "import";
    case config::ReadBy::kEngine:
      return "engine";
    case config::ReadBy::kRuntime:
      return "runtime";
    case config::ReadBy::kBuild:
      return "build";
    case config::ReadBy::kTests:
      return "tests";
  }
  return "";
}

py::list settings() {
  py::list rows;
  for (const config::Setting& setting : config::settings()) {
    py::dict row;
    row["name"] = setting.name;
    row["read_by"] = name_of(setting.read_by);
    row["default"] = setting.fallback;
    row["allowed"] = setting.allowed;
    row["description"] = setting.description;
    const bool is_set = config::is_set(setting.name);
    row["value"] = setting.is_secret && is_set ? "(set)" : config::text(setting.name);
    row["source"] = is_set ? "environment" : "default";
    rows.append(row);
  }
  return rows;
}

template <typename Number>
py::object bound_of(Number most, Number any) {
  return most == any ? py::object(py::none()) : py::object(py::int_(most));
}

// Returns the choices for groups of these ranks, with AXON_ALGO and AXON_EXACT applied. Kernels serve ranks of one host
// only.
py::list algorithms(int fewest_ranks, std::optional<int> most_ranks, int num_hosts) {
  const bool on_one_host = num_hosts == 1;
  Result<collectives::AlgorithmOverrides> parsed = collectives::AlgorithmOverrides::of_environment();
  if (!parsed.ok()) throw py::value_error("AXON_ALGO: " + parsed.status().message());
  const collectives::AlgorithmOverrides& overrides = parsed.value();
  const auto choose = [&](transport::OperationKind kind, int num_ranks, size_t num_bytes) {
    collectives::Choice choice;
    if (kind != transport::OperationKind::kPointToPoint) {
      const collectives::GroupShape group{.num_ranks = num_ranks, .num_hosts = std::min(num_hosts, num_ranks)};
      choice.algorithm = collectives::select(kind, group, num_bytes, overrides).name;
    }
    if (on_one_host) choice.kernel = c10d_backend::typical_kernel(kind, num_ranks, num_bytes, overrides);
    return choice;
  };
  py::list rows;
  for (const collectives::ChoiceRange& range :
       collectives::tabulate(fewest_ranks, most_ranks.value_or(collectives::kAnyRanks), choose)) {
    py::dict row;
    row["operation"] = transport::name_of(range.kind);
    row["fewest_ranks"] = range.fewest_ranks;
    row["most_ranks"] = bound_of(range.most_ranks, collectives::kAnyRanks);
    row["fewest_bytes"] = range.fewest_bytes;
    row["most_bytes"] = bound_of(range.most_bytes, collectives::kAnyBytes);
    row["algorithm"] = range.choice.algorithm;
    row["kernel"] = range.choice.kernel;
    rows.append(row);
  }
  return rows;
}

c10::intrusive_ptr<axon::c10d_backend::AxonBackend> create(const c10d::DistributedBackendOptions& group,
                                                           const axon::c10d_backend::AxonBackend::Options& given) {
  auto options = c10::make_intrusive<axon::c10d_backend::AxonBackend::Options>(
      given);  // a copy: one object may be passed to many groups
  options->group_name = group.group_id;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  options->enable_reconfigure = group.enable_reconfigure;
#endif
  options->global_ranks_in_group.assign(group.global_ranks_in_group.begin(), group.global_ranks_in_group.end());
  return c10::make_intrusive<axon::c10d_backend::AxonBackend>(group.store, group.group_rank, group.group_size,
                                                              std::move(options));
}

py::dict path_to(axon::c10d_backend::AxonBackend& backend, int rank) {
  const axon::c10d_backend::AxonBackend::Path path = [&] {
    const python::GilReleased no_gil;
    return backend.path_to(rank);
  }();
  py::list lanes;
  for (const transport::Lane& lane : path.host.lanes) lanes.append(py::make_tuple(lane.name, lane.device));
  py::dict row;
  row["same_host"] = path.host.same_host;
  row["lanes"] = lanes;
  row["network_obstacles"] = py::cast(path.host.obstacles);
  row["kernels"] = path.gpu ? py::object(py::bool_(path.gpu->by_kernels)) : py::object(py::none());
  row["obstacle"] = path.gpu ? path.gpu->obstacle : "";
  row["num_zero_copy"] = path.gpu ? path.gpu->num_zero_copy : 0;
  return row;
}

py::list selected(axon::c10d_backend::AxonBackend& backend, size_t num_bytes) {
  const auto choices = [&] {
    const py::gil_scoped_release unlocked;  // a launch into a full queue may hold the group's lock
    return backend.selected(num_bytes);
  }();
  py::list rows;
  for (const axon::c10d_backend::AxonBackend::Selected& each : choices) {
    py::dict row;
    row["operation"] = transport::name_of(each.kind);
    row["algorithm"] = each.choice.algorithm;
    row["kernel"] = each.choice.kernel;
    rows.append(row);
  }
  return rows;
}

// Addresses of this host for others, as rails use them.
std::vector<std::string> own_addresses() {
  std::vector<std::string> texts;
  for (const transport::IpAddress& address : transport::addresses_of_devices({}))
    texts.push_back(transport::text_of(address));
  return texts;
}

std::string ucx_version() {
  Result<std::string> version = transport::ucx_version();
  if (!version.ok()) throw std::runtime_error(version.status().message());
  return std::move(version).value();
}

// For exit: ends all waits with an error.
void shut_down() noexcept {
  python::note_end_of_python();
  axon::c10d_backend::HookInProgress::await_all();
  engine::shut_down_instance();
}

py::object mem_allocator(axon::c10d_backend::AxonBackend&) {
  axon::c10d_backend::check_registered_memory("mem_allocator", at::kCUDA);
  return py::module_::import("torch_axon._memory").attr("allocator")();
}

void bind_prepared_transfer(py::module_& module) {
  using c10d_backend::PreparedTransfer;
  using Unlocked = py::call_guard<python::GilReleased>;
  py::class_<PreparedTransfer>(module, "PreparedTransfer")
      .def(py::init([](c10::intrusive_ptr<c10d_backend::AxonBackend> backend, at::Tensor tensor, at::Tensor record,
                       bool is_sender, int peer, uint32_t tag, uint32_t num_partitions,
                       std::chrono::milliseconds timeout) {
             return std::make_unique<PreparedTransfer>(std::move(backend), std::move(tensor), std::move(record),
                                                       PreparedTransfer::Wish{.is_sender = is_sender,
                                                                              .peer = peer,
                                                                              .tag = tag,
                                                                              .num_partitions = num_partitions,
                                                                              .timeout = timeout});
           }),
           Unlocked())
      .def_property_readonly("address", [](const PreparedTransfer& self) { return py::bytes(self.address()); })
      .def_static("record_bytes", &PreparedTransfer::record_bytes)
      .def("open", &PreparedTransfer::open, Unlocked())
      .def("open_through_host", &PreparedTransfer::open_through_host, Unlocked())
      .def_static("most_host_partitions", &PreparedTransfer::most_host_partitions)
      .def("close", &PreparedTransfer::close, Unlocked())
      .def("has_ended", &PreparedTransfer::has_ended, Unlocked())
      .def_static("memory_stream", &PreparedTransfer::memory_stream)
      .def("start", &PreparedTransfer::start, Unlocked())
      .def("ready", &PreparedTransfer::ready, Unlocked())
      .def("arrived", &PreparedTransfer::arrived, Unlocked())
      .def("wait", &PreparedTransfer::wait, Unlocked())
      .def("add_to", &PreparedTransfer::add_to, Unlocked())
      .def("device_handle", &PreparedTransfer::device_handle);
}

}  // namespace
}  // namespace axon

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  using axon::c10d_backend::AxonBackend;
  using Options = axon::c10d_backend::AxonBackend::Options;
  py::module_::import("torch._C._distributed_c10d");  // the base classes

  auto backend =
      py::class_<axon::c10d_backend::AxonBackend, c10d::Backend, c10::intrusive_ptr<axon::c10d_backend::AxonBackend>>(
          module, "AxonBackend");
  py::class_<Options, c10d::Backend::Options, c10::intrusive_ptr<Options>>(module, "Options")
      .def(py::init<std::chrono::milliseconds>(), py::arg("timeout") = kBackendDefaultTimeout)
      .def("__deepcopy__", [](const Options& self, const py::dict&) { return c10::make_intrusive<Options>(self); });
  backend
      .def_property_readonly("options", [](axon::c10d_backend::AxonBackend& self) { return self.getBackendOptions(); })
      .def_property_readonly("num_zero_copy", py::cpp_function(&axon::c10d_backend::AxonBackend::num_zero_copy,
                                                               py::call_guard<axon::python::GilReleased>()))
      .def_property_readonly("mem_allocator", &axon::mem_allocator)
      .def("path_to", &axon::path_to, py::arg("rank"))
      .def("selected", &axon::selected, py::arg("num_bytes"))
      .def("get_error", &axon::c10d_backend::AxonBackend::getError, py::call_guard<axon::python::GilReleased>())
      .def("suspend", &axon::c10d_backend::AxonBackend::suspend, py::call_guard<axon::python::GilReleased>())
      .def("resume", &axon::c10d_backend::AxonBackend::resume, py::call_guard<axon::python::GilReleased>())
      .def("_send_reserved", &axon::c10d_backend::AxonBackend::send_reserved, py::arg("tensor"), py::arg("rank"),
           py::arg("tag"), py::arg("timeout"), py::call_guard<axon::python::GilReleased>())
      .def("_recv_reserved", &axon::c10d_backend::AxonBackend::recv_reserved, py::arg("tensor"), py::arg("rank"),
           py::arg("tag"), py::arg("timeout"), py::call_guard<axon::python::GilReleased>())
      .def("_has_peer_access", &axon::c10d_backend::AxonBackend::has_peer_access, py::arg("device"), py::arg("rank"),
           py::call_guard<axon::python::GilReleased>())
      .def("_start_time_estimate", &axon::c10d_backend::AxonBackend::startTimeEstimate)
      .def("_end_time_estimate", &axon::c10d_backend::AxonBackend::endTimeEstimate)
      .def("_reconfigure_handle", &axon::c10d_backend::AxonBackend::reconfigure_handle,
           py::call_guard<axon::python::GilReleased>())
      .def("_reconfigure", &axon::c10d_backend::AxonBackend::reconfigure_as, py::arg("uuid"), py::arg("handles"),
           py::arg("timeout"), py::call_guard<axon::python::GilReleased>())
      .def_property_readonly("_num_reconfigurations", &axon::c10d_backend::AxonBackend::num_reconfigurations)
      .def("memory_stats", &axon::c10d_backend::AxonBackend::getMemoryStats,
           py::call_guard<axon::python::GilReleased>())
      .def("perform_nocolor_split",
           [](const axon::c10d_backend::AxonBackend&, const py::object& /*device*/) {})  // nothing to do
      .def("_set_default_timeout", &axon::c10d_backend::AxonBackend::setTimeout, py::arg("timeout"),
           py::call_guard<axon::python::GilReleased>());

  axon::bind_prepared_transfer(module);
  using axon::c10d_backend::TransferWork;
  py::class_<TransferWork, c10d::Work, c10::intrusive_ptr<TransferWork>>(module, "TransferWork")
      .def(py::init([](std::chrono::milliseconds wait) { return c10::make_intrusive<TransferWork>(wait); }),
           py::arg("longest_wait") = std::chrono::milliseconds(0))
      .def("complete", &TransferWork::complete, py::arg("failure"), py::call_guard<axon::python::GilReleased>());
  axon::bind_status(module);
  module.def("create", &axon::create, py::arg("group"), py::arg("options"),
             py::call_guard<axon::python::GilReleased>());
  module.def("follow_reconfiguration", &axon::c10d_backend::follow_reconfiguration, py::arg("group"),
             py::arg("backend"));
  module.def("shut_down", &axon::shut_down, py::call_guard<axon::python::GilReleased>());
  module.def("end_unused_engine", &axon::engine::end_unused_instance, py::call_guard<axon::python::GilReleased>());
  module.def("settings", &axon::settings);
  module.def("own_addresses", &axon::own_addresses);
  module.def("use_ucx_of_wheel", &axon::transport::use_ucx_of_wheel, py::arg("folder"));
  module.def("ucx_version", &axon::ucx_version, py::call_guard<axon::python::GilReleased>());
  module.def("algorithms", &axon::algorithms, py::arg("fewest_ranks"), py::arg("most_ranks"), py::arg("num_hosts"));
  module.def("all_gather_matmul", &axon::fused::all_gather_matmul_at_once, py::call_guard<axon::python::GilReleased>());
  module.def("matmul_reduce_scatter", &axon::fused::matmul_reduce_scatter_at_once,
             py::call_guard<axon::python::GilReleased>());
  axon::rpc_python::bind_runtime(module);
}
