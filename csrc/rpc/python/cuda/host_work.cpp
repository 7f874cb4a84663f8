#include "rpc/python/cuda/host_work.hpp"

#include <array>
#include <cstring>
#include <utility>

#include "cuda/device.hpp"
#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/block_cutter.hpp"

namespace axon::rpc_python {

// The segments under way. A segment's blocks lie in its slot one after the other.
class HostWork::Segments {
 public:
  Segments(Job& job, ipc::BlockCopier& copier) noexcept : job_(job), copier_(copier) {}
  // A GPU may be copying.
  ~Segments() {
    for (Segment& segment : segments_) (void)await(segment);
  }

  Status move() {
    for (size_t number = 0; cutter_.has_next(job_.parts.blocks); ++number) {
      Segment& segment = segments_[number % kMostSegments];
      AXON_TRY(finish(segment));
      if (job_.is_stopped.load(std::memory_order_relaxed)) return {};
      AXON_TRY(begin(segment));
    }
    for (Segment& segment : segments_) AXON_TRY(finish(segment));
    return {};
  }

 private:
  struct Segment {
    std::optional<ipc::PinnedPool::Piece> slot;
    std::vector<GpuBlock> blocks;
    std::optional<ipc::BlockCopier::UnderWay> under_way;
  };

  Status begin(Segment& segment) {
    segment.blocks = cutter_.take(job_.parts.blocks, rpc::kSegmentNumBytes);
    if (!segment.slot) {
      Result<ipc::PinnedPool::Piece> slot = ipc::PinnedPool::instance().take(rpc::kSegmentNumBytes);
      if (!slot.ok()) return std::move(slot.status());
      segment.slot.emplace(std::move(slot).value());
    }
    std::vector<GpuBlock> in_slot = segment.blocks;
    std::byte* place = segment.slot->data();
    for (GpuBlock& block : in_slot) {
      if (writes()) std::memcpy(place, block.local, block.num_bytes);
      block.local = place;
      place += block.num_bytes;
    }
    Result<ipc::BlockCopier::UnderWay> launched =
        copier_.copy({.fill = [&] { return addresses_of(in_slot); },
                      .method = mapping_of(*in_slot.front().remote).method_from(copier_.device())});
    if (!launched.ok()) return std::move(launched.status());
    segment.under_way.emplace(std::move(launched).value());
    return {};
  }

  // Waits for the GPU, and takes what has been read.
  Status finish(Segment& segment) {
    if (!segment.under_way) return {};
    AXON_TRY(await(segment));
    const std::byte* place = segment.slot->data();
    for (const GpuBlock& block : segment.blocks) {
      if (!writes()) std::memcpy(block.local, place, block.num_bytes);
      place += block.num_bytes;
    }
    return {};
  }

  // If the device has failed, pinned memory of the segment is leaked, since nothing says that the device is done with
  // it. The host memory of the transfer is not concerned: only this thread uses it.
  static Status await(Segment& segment) {
    if (!segment.under_way) return {};
    Status ended = segment.under_way->wait();
    if (!ended.ok()) {
      [[maybe_unused]] auto* const leaked = new std::pair(std::move(segment.slot), std::move(segment.under_way));
      segment.slot.reset();
    }
    segment.under_way.reset();
    return ended;
  }

  Result<ipc::BlockCopier::Blocks> addresses_of(const std::vector<GpuBlock>& blocks) {
    Addresses addresses(copier_, job_.kind, blocks.size());
    for (const GpuBlock& block : blocks) addresses.add(block);
    return std::move(addresses).take();
  }

  bool writes() const noexcept { return job_.kind == rpc::Transfer::Kind::kWrite; }

  Job& job_;
  ipc::BlockCopier& copier_;
  std::array<Segment, kMostSegments> segments_;
  rpc::BlockCutter<GpuBlock> cutter_;
};

Status HostWork::Job::move() noexcept {
  Result<ipc::BlockCopier*> copier = ipc::BlockCopier::of(parts.gpu);
  if (!copier.ok()) return std::move(copier.status());
  const cuda::DeviceGuard guard(parts.gpu);  // pinned memory belongs to a context
  return Segments(*this, *copier.value()).move();
}

void HostWork::Job::run() noexcept {
  if (!is_stopped.load(std::memory_order_relaxed)) status = move();
  is_done.store(1, std::memory_order_release);
}

HostWork::HostWork(rpc::Transfer& transfer, Parts parts, Owner owner)
    : DeviceWork(transfer), job_(std::make_shared<Job>()), owner_(std::move(owner)) {
  job_->parts = std::move(parts);
  job_->kind = transfer.kind();
}

void HostWork::begin() noexcept {
  Status status;
  for (const std::shared_ptr<rpc::RemoteMemory>& remote : job_->parts.remotes) {
    if (status.ok()) status = uses_.begin(remote, job_->kind);
  }
  if (status.ok()) status = job_->parts.device->copier().add([job = job_] { job->run(); });
  if (!status.ok()) {
    uses_.end();
    return end(status);
  }
  transfer().connection()->engine().wait_for_flag(*this, job_->is_done);
}

void HostWork::on_flag_set() noexcept {
  uses_.end();
  if (job_->is_done.load(std::memory_order_acquire) != 0) {
    // The thread may hold the job for longer. It must not be the one that releases the peers' memory, which submits.
    job_->parts.remotes.clear();
    return end(job_->status);
  }
  job_->is_stopped.store(true, std::memory_order_relaxed);
  job_->late_owner = std::move(owner_);
  end(Status(ErrorCode::kAborted, "the engine has ended"));
}

}  // namespace axon::rpc_python
