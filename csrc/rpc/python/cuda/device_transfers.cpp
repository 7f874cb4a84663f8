#include "rpc/python/device_transfers.hpp"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <bit>
#include <map>
#include <stdexcept>
#include <utility>

#include "base/config.hpp"
#include "cuda/capture.hpp"
#include "cuda/device.hpp"
#include "cuda/device_types.hpp"
#include "cuda/stream.hpp"
#include "ipc/stream_marker.hpp"
#include "ipc/zero_copy_get.hpp"
#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/staged_work.hpp"
#include "rpc/python/cuda/cuda_device.hpp"
#include "rpc/python/cuda/cuda_mapping.hpp"
#include "rpc/python/cuda/direct_work.hpp"
#include "rpc/python/cuda/gpu_blocks.hpp"
#include "rpc/python/cuda/host_work.hpp"
#include "rpc/python/zero_copy_get.hpp"

namespace axon::rpc_python {

namespace {

void require(Status status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <typename T>
T required(Result<T> result) {
  if (!result.ok()) require(std::move(result.status()));
  return std::move(result).value();
}

cuda::StreamView view_of(c10::Stream stream) {
  return cuda::StreamView(static_cast<cudaStream_t>(stream.native_handle()));
}

c10::Stream current_stream_of(c10::DeviceIndex gpu) {
  return c10::impl::VirtualGuardImpl(at::kCUDA).getStream(c10::Device(at::kCUDA, gpu));
}

void require_no_capture(cuda::StreamView stream, const char* what) {
  if (required(is_capturing(stream))) {
    throw std::runtime_error(std::string(what) +
                             " while the stream is captured into a CUDA graph; allowed: outside captures");
  }
}

constexpr const char* kPosted = "a transfer of CUDA memory is posted";

// Returns where peers find the extents, or nothing if they cannot map one of them.
std::optional<rpc::DeviceRegion> mapped_region(c10::Device gpu, const std::vector<rpc::Extent>& extents) {
  rpc::DeviceRegion region;
  for (const rpc::Extent& extent : extents) {
    if (extent.num_bytes == 0) {
      region.mapped_addresses.push_back(0);
      continue;
    }
    const Result<ipc::ExposedLocation> place =
        ipc::expose(gpu.index(), reinterpret_cast<const void*>(extent.address), extent.num_bytes);
    if (!place.ok()) return std::nullopt;
    region.mapped_addresses.push_back(std::bit_cast<uint64_t>(
        cuda::IpcLocation{.offset = place.value().offset, .registration = place.value().registration}));
    region.location.incarnation = place.value().incarnation;
    region.location.export_table = place.value().export_table;
  }
  return region;
}

}  // namespace

rpc::DeviceRegion expose_on_gpu(c10::Device gpu, const std::vector<rpc::Extent>& extents) {
  if (gpu.index() >= cuda::num_devices()) {
    throw std::invalid_argument("expose: memory is on " + gpu.str() + ", and this process has " +
                                std::to_string(cuda::num_devices()) + " GPUs; allowed: memory of its GPUs");
  }
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(gpu.index());
  const cuda::StreamView stream = view_of(current_stream_of(gpu.index()));
  require_no_capture(stream, "expose: memory on CUDA is exposed");
  require(stream.synchronize());
  CudaDevice* const device = required(CudaDevice::of(gpu.index()));
  rpc::DeviceRegion region;
  if (config::has_transport("cuda")) {
    let_peers_read();
    region = mapped_region(gpu, extents).value_or(rpc::DeviceRegion{});
  }
  region.device = device;
  region.location.ordinal = gpu.index();
  region.location.uuid = required(cuda::uuid_of(gpu.index()));
  return region;
}

c10::DeviceIndex current_gpu() noexcept {
  return static_cast<c10::DeviceIndex>(cuda::current_device());
}

void map_remote(const std::shared_ptr<rpc::RemoteMemory>& remote, c10::DeviceIndex gpu) noexcept {
  if (!remote->is_device() || remote->mapping() != nullptr || cuda::num_devices() == 0) return;
  const rpc::DeviceLocation& location = remote->device_location();
  if (!remote->is_of_this_process()) {
    // A peer of another host could name any process of this one.
    const bool may_map = remote->connection()->is_neighbour() && config::has_transport("cuda");
    if (!may_map || !location.is_mappable()) return;
  }
  auto mapping = std::make_unique<CudaMapping>(*remote, remote->is_of_this_process() ? location.ordinal : gpu);
  if (mapping->is_usable_from(mapping->home())) remote->attach(std::move(mapping));
}

namespace {

// The blocks of a transfer, by what moves them.
class Sorted {
 public:
  explicit Sorted(const std::vector<DeviceBlock>& blocks) {
    Mapped* mapped = nullptr;  // of neighbouring blocks, which are mostly alike
    const DeviceBlock* latest = nullptr;
    for (const DeviceBlock& block : blocks) {
      if (block.local.num_bytes == 0) continue;
      if (latest == nullptr || block.remote != latest->remote || block.gpu != latest->gpu) mapped = mapped_for(block);
      latest = &block;
      if (mapped == nullptr) {
        add(staged_[block.gpu], block);
        continue;
      }
      if (mapped->blocks.empty()) mapped->blocks.reserve(blocks.size());
      add(*mapped, block);
    }
  }

  struct Staged {
    std::vector<rpc::StagedWork::Block> blocks;
    uint64_t num_bytes = 0;
  };
  struct Mapped {
    std::vector<GpuBlock> blocks;
    std::vector<std::shared_ptr<rpc::RemoteMemory>> remotes;
    uint64_t num_bytes = 0;
    size_t num_blocks = 0;
  };

  std::map<c10::DeviceIndex, Mapped> direct_;
  std::map<c10::DeviceIndex, Mapped> from_host_;
  std::map<c10::DeviceIndex, Staged> staged_;

 private:
  // Returns null if the local GPU cannot use the remote memory.
  Mapped* mapped_for(const DeviceBlock& block) {
    if (block.gpu < 0) return &from_host_[static_cast<c10::DeviceIndex>(mapping_of(*block.remote).home())];
    const bool is_direct = block.remote->mapping() != nullptr && mapping_of(*block.remote).is_usable_from(block.gpu);
    return is_direct ? &direct_[block.gpu] : nullptr;
  }

  static void add(Staged& to, const DeviceBlock& block) {
    to.blocks.push_back({.remote = block.remote->shared_from_this(),
                         .offset = block.offset,
                         .local = block.local.data,
                         .num_bytes = block.local.num_bytes});
    to.num_bytes += block.local.num_bytes;
  }

  static void add(Mapped& to, const DeviceBlock& block) {
    if (to.remotes.empty() || to.remotes.back().get() != block.remote) {
      to.remotes.push_back(block.remote->shared_from_this());
    }
    to.num_bytes += block.local.num_bytes;
    ++to.num_blocks;
    for_each_extent(*block.remote, block.offset, block.local, [&](const GpuBlock& part) { to.blocks.push_back(part); });
  }
};

// Work of this stream comes first. No marker: there is none.
std::shared_ptr<ipc::StreamMarker> marker_after(cuda::StreamView stream, int gpu) {
  const cuda::RelaxedCapture beside_captures;
  const cuda::DeviceGuard guard(gpu);
  if (stream.is_idle()) return nullptr;
  return std::make_shared<ipc::StreamMarker>(required(ipc::StreamMarker::set(stream)));
}

std::unique_ptr<rpc::StagedWork> staged_work(rpc::Transfer& transfer, Sorted::Staged& staged, cuda::StreamView stream,
                                             int gpu, Owner owner) {
  rpc::StagedWork::Parts parts{.device = required(CudaDevice::of(gpu)),
                               .slots = required(CudaDevice::slots_for_transfers(gpu)),
                               .blocks = std::move(staged.blocks),
                               .owner = std::move(owner),
                               .start_flag = nullptr,
                               .flag_owner = {}};
  if (std::shared_ptr<ipc::StreamMarker> marker = marker_after(stream, gpu)) {
    parts.start_flag = &marker->flag();
    parts.flag_owner = Owner::of(std::move(marker));
  }
  return std::make_unique<rpc::StagedWork>(transfer, std::move(parts));
}

}  // namespace

void add_device_blocks(rpc::Transfer& transfer, const std::vector<DeviceBlock>& blocks, std::vector<Owner> owners,
                       std::optional<c10::Stream> stream) {
  if (engine::Engine& engine = transfer.connection()->engine(); engine.is_forked()) require(engine::Engine::forked());
  const rpc::RemoteMemory* latest = nullptr;
  for (const DeviceBlock& block : blocks) {
    if (std::exchange(latest, block.remote) != block.remote) transfer.use(block.remote->shared_from_this());
  }
  Sorted sorted(blocks);
  const auto stream_of = [&](c10::DeviceIndex gpu) { return view_of(stream.value_or(current_stream_of(gpu))); };
  const auto refuse_captures = [&](const auto& by_gpu) {
    for (const auto& [gpu, moved] : by_gpu) {
      const cuda::DeviceGuard guard(gpu);
      require_no_capture(stream_of(gpu), kPosted);
    }
  };
  refuse_captures(sorted.direct_);
  refuse_captures(sorted.staged_);
  const auto kept = std::make_shared<std::vector<Owner>>(std::move(owners));  // shared by the works below
  // What may throw comes first, and the copies that cannot be called back last.
  std::vector<std::unique_ptr<DirectWork>> direct;
  for (auto& [gpu, staged] : sorted.staged_) {
    const size_t num_blocks = staged.blocks.size();
    const uint64_t num_bytes = staged.num_bytes;
    transfer.add(staged_work(transfer, staged, stream_of(gpu), gpu, Owner::of(kept)), num_blocks, num_bytes);
  }
  for (auto& [gpu, mapped] : sorted.from_host_) {
    HostWork::Parts parts{.device = required(CudaDevice::of(gpu)),
                          .gpu = gpu,
                          .blocks = std::move(mapped.blocks),
                          .remotes = std::move(mapped.remotes)};
    transfer.add(std::make_unique<HostWork>(transfer, std::move(parts), Owner::of(kept)), mapped.num_blocks,
                 mapped.num_bytes);
  }
  for (auto& [gpu, mapped] : sorted.direct_) {
    const auto addresses = [&, kind = transfer.kind()](ipc::BlockCopier& copier) {
      Addresses found(copier, kind, mapped.blocks.size());
      for (const GpuBlock& block : mapped.blocks) found.add(block);
      return std::move(found).take();
    };
    auto work = std::make_unique<DirectWork>(
        transfer,
        DirectWork::Parts{
            .gpu = gpu, .addresses = addresses, .remotes = std::move(mapped.remotes), .owner = Owner::of(kept)});
    work->launch(stream_of(gpu));
    transfer.add(std::move(work), mapped.num_blocks, mapped.num_bytes);
  }
}

bool copies_directly(c10::DeviceIndex gpu, std::span<const std::shared_ptr<rpc::RemoteMemory>> remotes) {
  return gpu >= 0 && std::ranges::all_of(remotes, [&](const std::shared_ptr<rpc::RemoteMemory>& remote) {
           return remote->mapping() != nullptr && mapping_of(*remote).is_usable_from(gpu);
         });
}

void add_direct_blocks(rpc::Transfer& transfer, const ListedBlocks& blocks, Owner owner,
                       std::optional<c10::Stream> stream) {
  const cuda::StreamView after = view_of(stream.value_or(current_stream_of(blocks.gpu)));
  const cuda::DeviceGuard guard(blocks.gpu);
  require_no_capture(after, kPosted);
  size_t num_blocks = 0;
  uint64_t num_bytes = 0;
  const auto addresses = [&, kind = transfer.kind()](ipc::BlockCopier& copier) {
    Addresses found(copier, kind, blocks.most);
    num_blocks = num_bytes = 0;
    blocks.list([&](const rpc::RemoteMemory& remote, uint64_t offset, Buffer local) {
      found.add(remote, offset, local);
      ++num_blocks;
      num_bytes += local.num_bytes;
    });
    return std::move(found).take();
  };
  auto work = std::make_unique<DirectWork>(transfer,
                                           DirectWork::Parts{.gpu = blocks.gpu,
                                                             .addresses = addresses,
                                                             .remotes = {blocks.remotes.begin(), blocks.remotes.end()},
                                                             .owner = std::move(owner)});
  work->launch(after);
  transfer.add(std::move(work), num_blocks, num_bytes);
}

}  // namespace axon::rpc_python
