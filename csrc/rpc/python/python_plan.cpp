#include "rpc/python/python_plan.hpp"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "python/gil.hpp"
#include "rpc/core/one_sided/address_ranges.hpp"
#include "rpc/core/one_sided/region_use.hpp"
#include "rpc/core/one_sided/transfer_plan.hpp"
#include "rpc/core/runtime.hpp"
#include "rpc/python/errors.hpp"
#include "rpc/python/local_memory.hpp"
#include "rpc/python/one_sided.hpp"
#include "rpc/python/python_runtime.hpp"

namespace axon::rpc_python {

namespace {

namespace py = pybind11;

using Kind = rpc::Transfer::Kind;

// The local side of a plan.
struct LocalSide {
  CommonType type;
  std::vector<rpc::LocalBlocks::Memory> memories;
  std::shared_ptr<std::vector<Owner>> owners = std::make_shared<std::vector<Owner>>();  // shared with transfers
  std::vector<std::shared_ptr<rpc::Region>> regions;                                    // shared with the runtime
};

struct PythonPlan {
  Kind kind;
  std::shared_ptr<rpc::Connection> connection;  // shared with the runtime
  std::shared_ptr<rpc::Exposed> exposed;        // of the runtime; shared with it
  LocalSide local;
  rpc::TransferPlan plan;
};

template <typename T>
std::span<const T> elements_of(const LocalMemory& memory) {
  return {reinterpret_cast<const T*>(memory.buffer.data), memory.buffer.num_bytes / sizeof(T)};
}

// `numbers` are offset, num_bytes, stride and count.
rpc::BlockLayout layout_of(const py::tuple& numbers) {
  return {.offset = py::cast<uint64_t>(numbers[0]),
          .num_bytes = py::cast<uint64_t>(numbers[1]),
          .stride = py::cast<uint64_t>(numbers[2]),
          .count = py::cast<uint64_t>(numbers[3])};
}

rpc::LocalBlocks::Memory memory_of(const rpc::Region& region) {
  const int32_t device = region.is_device() ? region.device_location().ordinal : -1;
  rpc::LocalBlocks::Memory memory;
  for (const rpc::Extent& extent : region.extents()) {
    memory.push_back(
        {.data = reinterpret_cast<std::byte*>(extent.address), .num_bytes = extent.num_bytes, .device = device});
  }
  return memory;
}

// `memories` are lists of parts, of which each is a region or memory of Python.
LocalSide local_side(const py::list& memories, bool reads) {
  LocalSide side;
  for (const py::handle memory : memories) {
    rpc::LocalBlocks::Memory& parts = side.memories.emplace_back();
    for (const py::handle part : py::cast<py::list>(memory)) {
      if (py::isinstance<rpc::Region>(part)) {
        auto region = py::cast<std::shared_ptr<rpc::Region>>(part);
        for (const rpc::LocalBlocks::Block& extent : memory_of(*region)) parts.push_back(extent);
        side.type.add(DataType::kByte);
        side.regions.push_back(std::move(region));
        continue;
      }
      LocalMemory here = local_memory(part, reads ? Use::kWritten : Use::kRead, "plan: local");
      parts.push_back({.data = here.buffer.data, .num_bytes = here.buffer.num_bytes, .device = here.gpu});
      side.type.add(here.dtype);
      side.owners->push_back(std::move(here.owner));
    }
  }
  return side;
}

// Each memory is a tuple of memory, offset and length.
std::vector<rpc::RemoteBlocks::Memory> remote_side(const py::list& memories,
                                                   const std::shared_ptr<rpc::Connection>& connection) {
  std::vector<rpc::RemoteBlocks::Memory> side;
  for (const py::handle each : memories) {
    const auto memory = py::cast<py::tuple>(each);
    auto remote = py::cast<std::shared_ptr<rpc::RemoteMemory>>(memory[0]);
    if (remote->connection() != connection) throw py::value_error("plan: remote was opened with another peer");
    side.push_back({.memory = std::move(remote),
                    .offset = py::cast<uint64_t>(memory[1]),
                    .num_bytes = py::cast<uint64_t>(memory[2])});
  }
  return side;
}

// Each side is a tuple of its memories, and a layout, or the contiguous memory of a table, which Python has checked.
std::shared_ptr<PythonPlan> make_plan(PythonRuntime& self, const std::shared_ptr<rpc::Connection>& connection,
                                      bool reads, const py::tuple& local, const py::tuple& remote) {
  const auto is_table = [](const py::tuple& side) { return !py::isinstance<py::tuple>(side[1]); };
  LocalSide here = local_side(py::cast<py::list>(local[0]), reads);
  rpc::LocalBlocks blocks_here = value_or_raise([&] {
    if (!is_table(local)) return rpc::LocalBlocks::laid_out(here.memories.front(), layout_of(local[1]));
    const LocalMemory table = host_memory(local[1], Use::kRead, "plan: local table");
    return rpc::LocalBlocks::listed(here.memories, elements_of<rpc::BlockRow>(table));
  }());
  std::vector<rpc::RemoteBlocks::Memory> there = remote_side(py::cast<py::list>(remote[0]), connection);
  rpc::RemoteBlocks blocks_there = value_or_raise([&] {
    if (!is_table(remote)) return rpc::RemoteBlocks::laid_out(std::move(there.front()), layout_of(remote[1]));
    const LocalMemory table = host_memory(remote[1], Use::kRead, "plan: remote table");
    return rpc::RemoteBlocks::listed(std::move(there), elements_of<rpc::BlockRow>(table));
  }());
  return std::make_shared<PythonPlan>(
      PythonPlan{.kind = reads ? Kind::kRead : Kind::kWrite,
                 .connection = connection,
                 .exposed = self.runtime().core().exposed(),
                 .local = std::move(here),
                 .plan = value_or_raise(rpc::TransferPlan::make(std::move(blocks_here), std::move(blocks_there)))});
}

// Keeps the local memory of a transfer.
std::shared_ptr<std::vector<Owner>> uses_of(const PythonPlan& self) {
  auto uses = std::make_shared<std::vector<Owner>>();
  uses->push_back(Owner::of(self.local.owners));
  for (const std::shared_ptr<rpc::Region>& region : self.local.regions) {
    uses->push_back(value_or_raise(rpc::use_region(self.connection->engine(), self.exposed, region)));
  }
  return uses;
}

std::vector<int32_t> copy_of(py::handle ids, const char* what) {
  const LocalMemory memory = host_memory(ids, Use::kRead, what);
  const std::span<const int32_t> elements = elements_of<int32_t>(memory);
  return {elements.begin(), elements.end()};
}

// The numbers of blocks, in pairs.
struct Pairs {
  std::span<const int32_t> local;
  std::span<const int32_t> remote;

  Pairs from(size_t first, size_t most) const {
    const size_t count = std::min(most, local.size() - first);
    return {.local = local.subspan(first, count), .remote = remote.subspan(first, count)};
  }
};

// So many pairs are launched at a time: a GPU copies them while the next ones are being listed.
constexpr size_t kPairsPerLaunch = 8192;

// One GPU copies all blocks by itself. The pairs have been checked.
void add_direct(const PythonPlan& self, PythonTransfer& transfer, const Pairs& pairs,
                const std::vector<std::shared_ptr<rpc::RemoteMemory>>& remotes,
                const std::shared_ptr<std::vector<Owner>>& uses, std::optional<c10::Stream> stream) {
  const auto gpu = static_cast<c10::DeviceIndex>(*self.plan.local().device());
  if (stream) require_stream_of(*stream, gpu);
  const python::GilReleased no_gil;
  for (const std::shared_ptr<rpc::RemoteMemory>& remote : remotes) transfer.use(remote);
  for (size_t first = 0; first < pairs.local.size(); first += kPairsPerLaunch) {
    const Pairs some = pairs.from(first, kPairsPerLaunch);
    const auto list = [&](const ListedBlocks::Add& add) {
      self.plan.for_each(some.local, some.remote, [&](const auto& remote, uint64_t offset, const auto& local) {
        add(*remote, offset, {.data = local.data, .num_bytes = local.num_bytes});
      });
    };
    add_direct_blocks(transfer, {.gpu = gpu, .remotes = remotes, .most = some.local.size(), .list = list},
                      Owner::of(uses), stream);
  }
}

// Adds the blocks to the transfer, or to those that devices move. The pairs have been checked.
void add_each(const PythonPlan& self, PythonTransfer& transfer, const Pairs& pairs,
              const std::shared_ptr<std::vector<Owner>>& uses, std::optional<c10::Stream> stream) {
  std::vector<DeviceBlock> of_devices;
  self.plan.for_each(
      pairs.local, pairs.remote,
      [&](const std::shared_ptr<rpc::RemoteMemory>& remote, uint64_t offset, const rpc::LocalBlocks::Block& local) {
        const Buffer here{.data = local.data, .num_bytes = local.num_bytes};
        const auto gpu = static_cast<c10::DeviceIndex>(local.device);
        if (!needs_device(*remote, gpu)) return transfer.add(remote, offset, here);
        of_devices.push_back({.remote = remote.get(), .offset = offset, .local = here, .gpu = gpu});
      });
  std::vector<Owner> owners;
  owners.push_back(Owner::of(uses));
  post_to_devices(transfer, of_devices, std::move(owners), stream);
}

// Pairs of blocks that have been checked, and where they lie.
struct Selection {
  std::vector<int32_t> local;
  std::vector<int32_t> remote;
  std::vector<std::shared_ptr<rpc::RemoteMemory>> remotes;  // of a GPU's transfer; shared with the peer's connection

  Pairs pairs() const noexcept { return {.local = local, .remote = remote}; }
};

c10::DeviceIndex gpu_of(const PythonPlan& plan) noexcept {
  return static_cast<c10::DeviceIndex>(plan.plan.local().device().value_or(-1));
}

// The ids are contiguous memory of int32, which Python has checked. They are copied: other threads may change them
// once this one releases Python's lock.
Selection select(const PythonPlan& plan, py::handle local_ids, py::handle remote_ids) {
  Selection selection{
      .local = copy_of(local_ids, "post: local_ids"), .remote = copy_of(remote_ids, "post: remote_ids"), .remotes = {}};
  const Pairs pairs = selection.pairs();
  if (const Status checked = plan.plan.check(pairs.local, pairs.remote); !checked.ok()) raise(checked);
  if (gpu_of(plan) >= 0) selection.remotes = plan.plan.memories_of(pairs.remote);
  return selection;
}

// The arguments after the selection are those of post_blocks().
rpc::Counted<PythonTransfer> post(const PythonPlan& plan, const Selection& selection, const py::object& notification,
                                  double timeout_s, std::optional<c10::Stream> stream) {
  if (plan.connection->engine().is_forked()) raise(engine::Engine::forked());
  auto transfer = rpc::Counted<PythonTransfer>::adopt(*new PythonTransfer(plan.kind, plan.connection));
  set_options(*transfer, notification, timeout_s);
  transfer->dtype = plan.local.type.get();
  const std::shared_ptr<std::vector<Owner>> uses = uses_of(plan);  // shared by the transfer and its devices' work
  transfer->keep(Owner::of(uses));
  if (copies_directly(gpu_of(plan), selection.remotes)) {
    add_direct(plan, *transfer, selection.pairs(), selection.remotes, uses, stream);
  } else {
    add_each(plan, *transfer, selection.pairs(), uses, stream);
  }
  start_transfer(*transfer);
  return transfer;
}

// Transfers of one selection, one after the other, without an object of Python for each.
class RepeatedTransfer {
 public:
  RepeatedTransfer(std::shared_ptr<const PythonPlan> plan, py::handle local_ids, py::handle remote_ids)
      : plan_(std::move(plan)), selection_(select(*plan_, local_ids, remote_ids)) {}

  // The latest transfer must have ended.
  TransferState post(const py::object& notification, double timeout_s) {
    latest_ = rpc_python::post(*plan_, selection_, notification, timeout_s, std::nullopt);
    return state_of(*latest_);
  }
  TransferState poll() {
    const rpc::Counted<PythonTransfer> transfer = latest_;  // another thread may post meanwhile
    if (transfer.get() == nullptr) throw py::value_error("poll: no transfer has been posted");
    return poll_transfer(*transfer);
  }
  const rpc::Counted<PythonTransfer>& latest() const noexcept { return latest_; }

 private:
  const std::shared_ptr<const PythonPlan> plan_;  // shared with Python
  const Selection selection_;
  rpc::Counted<PythonTransfer> latest_;
};

// Writes into `table`, whose rows are those of a plan, where each range of `wanted` lies within `known`. Both have rows
// of address, length and device; Python has checked the shapes. Returns the number of rows before the first one that is
// in none of them.
size_t locate_blocks(py::handle wanted, py::handle known, py::handle table) {
  const LocalMemory from = host_memory(wanted, Use::kRead, "locate: wanted");
  const LocalMemory in = host_memory(known, Use::kRead, "locate: known");
  const LocalMemory to = host_memory(table, Use::kWritten, "locate: table");
  const python::GilReleased no_gil;
  const rpc::AddressRanges ranges(elements_of<rpc::AddressRange>(in));
  return ranges.locate(elements_of<rpc::AddressRange>(from), reinterpret_cast<rpc::BlockRow*>(to.buffer.data));
}

}  // namespace

void bind_plan(py::module_& module) {
  // `options` are the notification, the timeout and the stream.
  py::class_<PythonPlan, std::shared_ptr<PythonPlan>>(module, "RuntimePlan")
      .def("post", [](const PythonPlan& self, py::handle local_ids, py::handle remote_ids, const py::tuple& options) {
        return post(self, select(self, local_ids, remote_ids), options[0], py::cast<double>(options[1]),
                    stream_in(options[2]));
      });
  py::class_<RepeatedTransfer>(module, "RuntimeRepeatedTransfer")
      .def(py::init<std::shared_ptr<const PythonPlan>, py::handle, py::handle>())
      .def("post", [](RepeatedTransfer& self, const py::object& notification,
                      double timeout_s) { return static_cast<int>(self.post(notification, timeout_s)); })
      .def("poll", [](RepeatedTransfer& self) { return static_cast<int>(self.poll()); })
      .def_property_readonly("latest", &RepeatedTransfer::latest);
  module.def("make_plan", &make_plan);
  module.def("locate_blocks", &locate_blocks);
}

}  // namespace axon::rpc_python
