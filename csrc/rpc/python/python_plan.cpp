#include "rpc/python/python_plan.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "python/gil.hpp"
#include "rpc/core/one_sided/transfer_plan.hpp"
#include "rpc/python/errors.hpp"
#include "rpc/python/local_memory.hpp"
#include "rpc/python/one_sided.hpp"

namespace axon::rpc_python {

namespace {

namespace py = pybind11;

using Kind = rpc::Transfer::Kind;

struct PythonPlan {
  Kind kind;
  std::shared_ptr<rpc::Connection> connection;       // shared with the runtime
  std::shared_ptr<const std::vector<Owner>> owners;  // of local memory; shared with transfers under way
  rpc::TransferPlan plan;
  c10::DeviceIndex gpu;  // of local memory; −1: the host's
};

// `numbers` are offset, num_bytes, stride and count.
rpc::BlockLayout layout_of(const py::tuple& numbers) {
  return {.offset = py::cast<uint64_t>(numbers[0]),
          .num_bytes = py::cast<uint64_t>(numbers[1]),
          .stride = py::cast<uint64_t>(numbers[2]),
          .count = py::cast<uint64_t>(numbers[3])};
}

// `remote` is a tuple of memory, offset and length.
std::unique_ptr<PythonPlan> make_plan(const std::shared_ptr<rpc::Connection>& connection, bool reads,
                                      const py::list& parts, const py::tuple& local_layout, const py::tuple& remote,
                                      const py::tuple& remote_layout) {
  const auto memory = py::cast<std::shared_ptr<rpc::RemoteMemory>>(remote[0]);
  if (memory->connection() != connection) throw py::value_error("plan: remote was opened with another peer");
  auto owners = std::make_shared<std::vector<Owner>>();
  std::vector<Buffer> buffers;
  std::optional<c10::DeviceIndex> gpu;
  for (const py::handle part : parts) {
    LocalMemory here = local_memory(part, reads ? Use::kWritten : Use::kRead, "plan: local");
    if (gpu.value_or(here.gpu) != here.gpu) throw py::value_error("plan: local is on several devices; allowed: one");
    gpu = here.gpu;
    buffers.push_back(here.buffer);
    owners->push_back(std::move(here.owner));
  }
  rpc::TransferPlan plan = value_or_raise(rpc::TransferPlan::make(
      {.memory = buffers, .layout = layout_of(local_layout)}, {.memory = memory,
                                                               .offset = py::cast<uint64_t>(remote[1]),
                                                               .num_bytes = py::cast<uint64_t>(remote[2]),
                                                               .layout = layout_of(remote_layout)}));
  return std::make_unique<PythonPlan>(PythonPlan{.kind = reads ? Kind::kRead : Kind::kWrite,
                                                 .connection = connection,
                                                 .owners = std::move(owners),
                                                 .plan = std::move(plan),
                                                 .gpu = gpu.value_or(-1)});
}

std::span<const int32_t> ids_in(const LocalMemory& memory) {
  return {reinterpret_cast<const int32_t*>(memory.buffer.data), memory.buffer.num_bytes / sizeof(int32_t)};
}

// Adds the blocks to the transfer, or to those that a device moves.
Status add_blocks(const PythonPlan& self, PythonTransfer& transfer, std::span<const int32_t> local_ids,
                  std::span<const int32_t> remote_ids, std::vector<DeviceBlock>& of_devices) {
  const std::shared_ptr<rpc::RemoteMemory>& remote = self.plan.remote();
  if (!needs_device(*remote, self.gpu)) return self.plan.add_to(transfer, local_ids, remote_ids);
  of_devices.reserve(local_ids.size());
  return self.plan.for_each(local_ids, remote_ids, [&](uint64_t offset, Buffer local) {
    of_devices.push_back({.remote = remote.get(), .offset = offset, .local = local, .gpu = self.gpu});
  });
}

// The ids are contiguous memory of int32, which Python has checked. `options` are as for post_blocks().
rpc::Counted<PythonTransfer> post(const PythonPlan& self, py::handle local_ids, py::handle remote_ids,
                                  const py::tuple& options) {
  const LocalMemory local = host_memory(local_ids, Use::kRead, "post: local_ids");
  const LocalMemory remote = host_memory(remote_ids, Use::kRead, "post: remote_ids");
  auto transfer = rpc::Counted<PythonTransfer>::adopt(*new PythonTransfer(self.kind, self.connection));
  set_options(*transfer, options[0], py::cast<double>(options[1]));
  std::vector<DeviceBlock> of_devices;
  if (const Status added = add_blocks(self, *transfer, ids_in(local), ids_in(remote), of_devices); !added.ok()) {
    raise(added);
  }
  transfer->keep(Owner::of(self.owners));
  std::vector<Owner> owners;
  owners.push_back(Owner::of(self.owners));
  post_to_devices(*transfer, of_devices, std::move(owners), stream_in(options[2]));
  start_transfer(*transfer);
  return transfer;
}

}  // namespace

void bind_plan(py::module_& module) {
  py::class_<PythonPlan>(module, "RuntimePlan").def("post", &post);
  module.def("make_plan", &make_plan);
}

}  // namespace axon::rpc_python
