#include "rpc/python/one_sided.hpp"

#include <ATen/ops/from_blob.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <utility>

#include "memory/mappable_memory.hpp"
#include "python/gil.hpp"
#include "rpc/core/drive_until.hpp"
#include "rpc/core/one_sided/mapped_use.hpp"
#include "rpc/core/runtime.hpp"
#include "rpc/python/call_members.hpp"
#include "rpc/python/device_transfers.hpp"
#include "rpc/python/errors.hpp"
#include "rpc/python/local_memory.hpp"
#include "rpc/python/python_plan.hpp"
#include "rpc/python/python_runtime.hpp"
#include "rpc/python/tensors.hpp"
#include "rpc/python/waits.hpp"

namespace axon::rpc_python {

namespace {

namespace py = pybind11;

using rpc::Access;
using rpc::Region;
using rpc::RemoteMemory;

using Remote = std::shared_ptr<RemoteMemory>;  // shared with transfers and the connection

std::string text_of_access(Access access) {
  return rpc::name_of(access);
}

// Releases the owners of all extents of a region.
Owner joined(std::vector<Owner> owners) {
  if (owners.size() == 1) return std::move(owners.front());
  return {new std::vector<Owner>(std::move(owners)), [](void* held) { delete static_cast<std::vector<Owner>*>(held); }};
}

std::shared_ptr<Region> expose_at(PythonRuntime& self, rpc::RegionSpecification specification, Owner owner) {
  return value_or_raise([&] {
    const python::GilReleased no_gil;
    return self.runtime().core().expose(std::move(specification), std::move(owner));
  }());
}

std::string place_of(c10::DeviceIndex gpu) {
  return gpu < 0 ? "the CPU" : "cuda:" + std::to_string(gpu);
}

void expose_device(rpc::RegionSpecification& specification, c10::DeviceIndex gpu) {
  if (gpu < 0) return;
  const python::GilReleased no_gil;
  specification.device = expose_on_gpu(c10::Device(c10::kCUDA, gpu), specification.extents);
}

// `access` is that of an enum, which Python has checked.
std::shared_ptr<Region> expose_objects(PythonRuntime& self, const py::list& objects, int access, std::string name) {
  rpc::RegionSpecification specification{.name = std::move(name), .access = static_cast<Access>(access), .extents = {}};
  const bool is_written = allows(specification.access, Access::kWrite);
  std::vector<Owner> owners;
  std::optional<c10::DeviceIndex> gpu;
  for (const py::handle object : objects) {
    LocalMemory memory = local_memory(object, is_written ? Use::kWritten : Use::kRead, "expose: memory");
    specification.extents.push_back(
        {.address = reinterpret_cast<uint64_t>(memory.buffer.data), .num_bytes = memory.buffer.num_bytes});
    owners.push_back(std::move(memory.owner));
    if (gpu.value_or(memory.gpu) != memory.gpu) {
      throw py::value_error("expose: memory is on " + place_of(*gpu) + " and on " + place_of(memory.gpu) +
                            "; allowed: memory of one device in one region");
    }
    gpu = memory.gpu;
  }
  expose_device(specification, gpu.value_or(-1));
  return expose_at(self, std::move(specification), joined(std::move(owners)));
}

void release_object(void* held) {
  if (!python::python_goes_on()) return;
  const python::GilHeld gil;
  py::handle(static_cast<PyObject*>(held)).dec_ref();
}

// Bytes that peers of this host map.
at::Tensor mappable_tensor(size_t num_bytes) {
  const python::GilReleased no_gil;
  Result<std::shared_ptr<MappableMemory>> made = MappableMemory::make(num_bytes);
  if (!made.ok()) throw std::runtime_error("empty: " + made.status().message());
  std::shared_ptr<MappableMemory> memory = std::move(made).value();
  std::byte* const data = memory->bytes().data();
  return at::from_blob(data, {static_cast<int64_t>(num_bytes)}, [memory = std::move(memory)](void*) {}, at::kByte);
}

// Bytes of a peer's memory that this process has mapped.
at::Tensor mapped_tensor(const Remote& memory, uint64_t offset, uint64_t num_bytes) {
  Result<rpc::MappedUse> begun = rpc::MappedUse::begin(memory, offset, num_bytes);
  if (begun.status().code() == ErrorCode::kInvalidArgument)
    throw py::value_error("tensor: " + begun.status().message());
  auto use = std::make_shared<rpc::MappedUse>(value_or_raise(std::move(begun)));  // std::function copies it
  std::byte* const data = use->data();
  return at::from_blob(data, {static_cast<int64_t>(num_bytes)}, [use = std::move(use)](void*) {}, at::kByte);
}

// `gpu` is −1 for memory of the host.
std::shared_ptr<Region> expose_address(PythonRuntime& self, std::pair<uint64_t, uint64_t> memory, int gpu, int access,
                                       std::string name, py::object keepalive) {
  rpc::RegionSpecification specification{.name = std::move(name),
                                         .access = static_cast<Access>(access),
                                         .extents = {{.address = memory.first, .num_bytes = memory.second}}};
  expose_device(specification, static_cast<c10::DeviceIndex>(gpu));
  return expose_at(self, std::move(specification), Owner(keepalive.release().ptr(), &release_object));
}

py::bytes handle_of(PythonRuntime& self, const Region& region, uint64_t offset, uint64_t num_bytes, int access,
                    uint64_t peer) {
  const rpc::EncodedHandle bytes = value_or_raise(self.runtime().core().exposed()->regions.handle(
      region, {.offset = offset, .num_bytes = num_bytes, .access = static_cast<Access>(access), .peer = peer}));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool await_rest(PythonRuntime& self, const std::shared_ptr<Region>& region, double timeout_s) {
  rpc::RuntimeCore& core = self.runtime().core();
  if (core.engine().is_forked()) return true;
  return wait_for(timeout_s, [&](sync::Clock::time_point until) {
    return rpc::drive_until(core.engine(), [&] { return core.is_at_rest(*region); }, until);
  });
}

std::vector<std::string> holders_of(PythonRuntime& self, const Region& region) {
  return self.runtime().core().holders(region);
}

// ---- Transfers

struct Posting {
  const char* what;  // begins the errors
  rpc::Transfer::Kind kind;
  Use use;
};
constexpr Posting kReading{.what = "read: into", .kind = rpc::Transfer::Kind::kRead, .use = Use::kWritten};
constexpr Posting kWriting{.what = "write: source", .kind = rpc::Transfer::Kind::kWrite, .use = Use::kRead};

// Collects the common type of a transfer's blocks, and the blocks that a device moves.
struct AddedBlocks {
  CommonType type;
  std::vector<DeviceBlock> of_devices;
  std::vector<Owner> device_owners;
};

struct RemoteBlock {
  Remote memory;
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
};

void add_block(rpc::Transfer& transfer, const RemoteBlock& remote, py::handle local, const Posting& posting,
               AddedBlocks& added) {
  const auto& [memory, offset, num_bytes] = remote;
  if (memory->connection() != transfer.connection()) {
    throw py::value_error(std::string(posting.what).substr(0, std::string(posting.what).find(':')) +
                          ": remote was opened with another peer");
  }
  LocalMemory here = local_memory(local, posting.use, posting.what);
  if (here.buffer.num_bytes != num_bytes) {
    throw py::value_error(std::string(posting.what) + " has " + std::to_string(here.buffer.num_bytes) +
                          " bytes, and the remote memory " + std::to_string(num_bytes) +
                          "; allowed: equal sizes, see slices of Remote");
  }
  added.type.add(here.dtype);
  if (needs_device(*memory, here.gpu)) {
    added.of_devices.push_back({.remote = memory.get(), .offset = offset, .local = here.buffer, .gpu = here.gpu});
    added.device_owners.push_back(std::move(here.owner));
    return;
  }
  transfer.add(memory, offset, here.buffer);
  transfer.keep(std::move(here.owner));
}

// `options` are the notification, the timeout, the stream, and the number of the type as which links compress, or None
// for that of the local memory. `add_blocks` adds them to the transfer.
template <typename AddBlocks>
rpc::Counted<PythonTransfer> post(const std::shared_ptr<rpc::Connection>& connection, const py::tuple& options,
                                  const Posting& posting, AddBlocks add_blocks) {
  auto transfer = rpc::Counted<PythonTransfer>::adopt(*new PythonTransfer(posting.kind, connection));
  set_options(*transfer, options[0], py::cast<double>(options[1]));
  const std::optional<c10::Stream> stream = stream_in(options[2]);
  AddedBlocks added;
  add_blocks(*transfer, added);
  transfer->dtype = options[3].is_none() ? added.type.get() : static_cast<DataType>(py::cast<uint8_t>(options[3]));
  post_to_devices(*transfer, added.of_devices, std::move(added.device_owners), stream);
  start_transfer(*transfer);
  return transfer;
}

rpc::Counted<PythonTransfer> post_block(const std::shared_ptr<rpc::Connection>& connection, const Remote& memory,
                                        uint64_t offset, uint64_t num_bytes, py::handle local, const py::tuple& options,
                                        const Posting& posting) {
  return post(connection, options, posting, [&](rpc::Transfer& transfer, AddedBlocks& added) {
    add_block(transfer, {.memory = memory, .offset = offset, .num_bytes = num_bytes}, local, posting, added);
  });
}

// `remotes` are tuples of memory, offset and length.
rpc::Counted<PythonTransfer> post_blocks(const std::shared_ptr<rpc::Connection>& connection, const py::list& remotes,
                                         const py::list& locals, const py::tuple& options, const Posting& posting) {
  return post(connection, options, posting, [&](rpc::Transfer& transfer, AddedBlocks& added) {
    for (size_t i = 0; i < remotes.size(); ++i) {
      const py::tuple remote = remotes[i];
      add_block(transfer,
                {.memory = py::cast<Remote>(remote[0]),
                 .offset = py::cast<uint64_t>(remote[1]),
                 .num_bytes = py::cast<uint64_t>(remote[2])},
                locals[i], posting, added);
    }
  });
}

rpc::Counted<PythonTransfer> post_notification(const std::shared_ptr<rpc::Connection>& connection, const py::bytes& tag,
                                               double timeout_s) {
  auto transfer = rpc::Counted<PythonTransfer>::adopt(*new PythonTransfer(rpc::Transfer::Kind::kNotify, connection));
  set_options(*transfer, tag, timeout_s);
  start_transfer(*transfer);
  return transfer;
}

rpc::Counted<PythonTransfer> open_handle(const std::shared_ptr<rpc::Connection>& connection, const py::bytes& handle,
                                         double timeout_s) {
  const std::string_view bytes(handle);
  value_or_raise(rpc::RegionHandle::decode(std::as_bytes(std::span(bytes))));
  auto transfer = rpc::Counted<PythonTransfer>::adopt(*new PythonTransfer(rpc::Transfer::Kind::kOpen, connection));
  std::ranges::copy(std::as_bytes(std::span(bytes)), transfer->handle.begin());
  set_options(*transfer, py::none(), timeout_s);
  start_transfer(*transfer);
  return transfer;
}

// Returns whether the transfer is done, and has not failed, after at most this time.
bool succeeds(PythonTransfer& self, double timeout_s) {
  return wait(*self.call(), timeout_s) && self.call()->status().ok();
}

py::tuple stats_of(const PythonTransfer& self) {
  const auto us = [](sync::Clock::duration time) { return std::chrono::duration<double, std::micro>(time).count(); };
  return py::make_tuple(us(self.time_posted()), us(self.time_moved()), self.num_bytes(), self.num_blocks(),
                        self.path());
}

py::list listed(std::vector<rpc::Notification> notifications) {
  py::list list;
  for (rpc::Notification& each : notifications) list.append(py::make_tuple(std::move(each.from), py::bytes(each.tag)));
  return list;
}

// A program that asks again and again drives the engine by that.
void poll(engine::Engine& engine) {
  if (engine.is_forked()) return;
  const python::GilReleased no_gil;
  engine.poll();
}

py::list take_notifications(PythonRuntime& self, const std::shared_ptr<rpc::Connection>& from) {
  rpc::RuntimeCore& core = self.runtime().core();
  std::vector<rpc::Notification> taken = core.exposed()->notifications.take(from.get());
  if (!taken.empty()) return listed(std::move(taken));
  poll(core.engine());
  return listed(core.exposed()->notifications.take(from.get()));
}

py::list take_first_notification(PythonRuntime& self) {
  return listed(self.runtime().core().exposed()->notifications.take_first(1));
}

// Raises if no notification is left, and none will arrive.
void check_open(rpc::RuntimeCore& core, const rpc::Connection* from) {
  if (core.engine().is_forked()) raise(engine::Engine::forked());
  if (core.exposed()->notifications.is_over(from)) raise(Status(ErrorCode::kAborted, "the runtime is closed"));
}

bool await_notification(PythonRuntime& self, const std::shared_ptr<rpc::Connection>& from, double timeout_s) {
  rpc::RuntimeCore& core = self.runtime().core();
  check_open(core, from.get());
  return wait_for(timeout_s, [&](sync::Clock::time_point until) {
    return core.exposed()->notifications.wait(core.engine(), from.get(), until);
  });
}

bool watch_notifications(PythonRuntime& self) {
  check_open(self.runtime().core(), nullptr);
  return self.watch_notifications();
}

void check_stream(c10::Stream stream, const std::vector<DeviceBlock>& blocks) {
  const auto is_of_gpu = [](const DeviceBlock& block) { return block.gpu >= 0; };
  if (std::ranges::none_of(blocks, is_of_gpu)) {
    throw py::value_error("stream is given for local memory of the host; allowed: for CUDA tensors");
  }
  for (const DeviceBlock& block : blocks) {
    if (is_of_gpu(block)) require_stream_of(stream, block.gpu);
  }
}

}  // namespace

std::optional<c10::Stream> stream_in(const py::object& numbers) {
  if (numbers.is_none()) return std::nullopt;
  const auto [id, index, type] = py::cast<std::tuple<int64_t, int64_t, int64_t>>(numbers);
  return c10::Stream::unpack3(id, static_cast<c10::DeviceIndex>(index), static_cast<c10::DeviceType>(type));
}

void require_stream_of(c10::Stream stream, c10::DeviceIndex gpu) {
  if (!stream.device().is_cuda()) {
    throw py::value_error("stream is of " + stream.device().str() + "; allowed: a stream of CUDA");
  }
  if (gpu == stream.device_index()) return;
  throw py::value_error("stream is of " + stream.device().str() + ", and a tensor on " + place_of(gpu) +
                        "; allowed: a stream of the tensors' GPU");
}

void post_to_devices(PythonTransfer& transfer, const std::vector<DeviceBlock>& blocks, std::vector<Owner> owners,
                     std::optional<c10::Stream> stream) {
  if (stream) check_stream(*stream, blocks);
  if (blocks.empty()) return;
  const python::GilReleased no_gil;
  add_device_blocks(transfer, blocks, std::move(owners), stream);
}

TransferState state_of(const PythonTransfer& transfer) noexcept {
  if (!transfer.call()->finished()) return TransferState::kUnderWay;
  return transfer.call()->status().ok() ? TransferState::kDone : TransferState::kFailed;
}

TransferState poll_transfer(PythonTransfer& transfer) {
  if (!transfer.finished()) poll(transfer.connection()->engine());
  return state_of(transfer);
}

void start_transfer(PythonTransfer& transfer) {
  const python::GilReleased no_gil;
  transfer.connection()->one_sided().start(transfer);
}

void set_options(rpc::Transfer& transfer, const py::object& notification, double timeout_s) {
  transfer.timeout = std::chrono::ceil<std::chrono::milliseconds>(timeout_of(timeout_s));
  if (notification.is_none()) return;
  transfer.notification = py::cast<std::string>(notification);
  if (transfer.notification->size() <= rpc::Notifications::kLongest) return;
  throw py::value_error("notification has " + std::to_string(transfer.notification->size()) +
                        " bytes; allowed: up to " + std::to_string(rpc::Notifications::kLongest));
}

void bind_one_sided(py::module_& module) {
  py::class_<Region, std::shared_ptr<Region>>(module, "RuntimeRegion")
      .def_property_readonly("name", [](const Region& self) { return text_of(self.name()); })
      .def_property_readonly("access", [](const Region& self) { return text_of_access(self.access()); })
      .def_property_readonly("nbytes", &Region::num_bytes)
      .def("handle", [](const Region& self, PythonRuntime& runtime, uint64_t offset, uint64_t num_bytes, int access,
                        uint64_t peer) { return handle_of(runtime, self, offset, num_bytes, access, peer); })
      .def(
          "revoke", [](Region& self, PythonRuntime& runtime) { runtime.runtime().core().revoke(self); },
          py::call_guard<python::GilReleased>())
      .def("await_rest", [](const std::shared_ptr<Region>& self, PythonRuntime& runtime,
                            double timeout_s) { return await_rest(runtime, self, timeout_s); })
      .def(
          "holders", [](const Region& self, PythonRuntime& runtime) { return holders_of(runtime, self); },
          py::call_guard<python::GilReleased>());
  py::class_<RemoteMemory, Remote>(module, "RuntimeRemote")
      .def_property_readonly("region", [](const RemoteMemory& self) { return text_of(self.region()); })
      .def_property_readonly("access", [](const RemoteMemory& self) { return text_of_access(self.access()); })
      .def_property_readonly("nbytes", &RemoteMemory::num_bytes)
      .def_property_readonly("is_device", &RemoteMemory::is_device)
      .def(
          "map", [](const Remote& self, int gpu) { map_remote(self, static_cast<c10::DeviceIndex>(gpu)); },
          py::call_guard<python::GilReleased>())
      .def("tensor", &mapped_tensor)
      .def_property_readonly("path", [](const RemoteMemory& self) { return self.name_of_path(); });
  py::class_<PythonTransfer, rpc::Counted<PythonTransfer>> transfer(module, "RuntimeTransfer");
  add_call_members(transfer, [](PythonTransfer& self) -> PythonCall& { return *self.call(); });
  transfer.def("succeeds", &succeeds)
      .def_property_readonly("opened", [](const PythonTransfer& self) { return self.opened(); })
      .def_property_readonly("released", [](const PythonTransfer& self) { return self.released(); })
      .def(
          "cancel", [](PythonTransfer& self) { self.connection()->one_sided().cancel(self); },
          py::call_guard<python::GilReleased>())
      .def("poll", [](PythonTransfer& self) { return static_cast<int>(poll_transfer(self)); })
      .def("stats", &stats_of);
  bind_plan(module);
  module.def("mappable_tensor", &mappable_tensor);
  module.def("expose", &expose_objects);
  module.def("expose_pointer", &expose_address);
  module.def("open_handle", &open_handle);
  module.def("current_gpu", [] { return static_cast<int>(current_gpu()); });
  module.def("read_block", [](const std::shared_ptr<rpc::Connection>& connection, const Remote& memory, uint64_t offset,
                              uint64_t num_bytes, py::handle local, const py::tuple& options) {
    return post_block(connection, memory, offset, num_bytes, local, options, kReading);
  });
  module.def("write_block", [](const std::shared_ptr<rpc::Connection>& connection, const Remote& memory,
                               uint64_t offset, uint64_t num_bytes, py::handle local, const py::tuple& options) {
    return post_block(connection, memory, offset, num_bytes, local, options, kWriting);
  });
  module.def("post_read",
             [](const std::shared_ptr<rpc::Connection>& connection, const py::list& remotes, const py::list& locals,
                const py::tuple& options) { return post_blocks(connection, remotes, locals, options, kReading); });
  module.def("post_write",
             [](const std::shared_ptr<rpc::Connection>& connection, const py::list& remotes, const py::list& locals,
                const py::tuple& options) { return post_blocks(connection, remotes, locals, options, kWriting); });
  module.def("post_notification", &post_notification);
  module.def("take_notifications", &take_notifications);
  module.def("take_first_notification", &take_first_notification);
  module.def("await_notification", &await_notification);
  module.def("watch_notifications", &watch_notifications);
}

}  // namespace axon::rpc_python
