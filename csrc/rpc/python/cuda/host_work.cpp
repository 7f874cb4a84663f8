#include "rpc/python/cuda/host_work.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/clock.hpp"
#include "cuda/device.hpp"
#include "rpc/core/connection.hpp"

namespace axon::rpc_python {

// A segment takes some 100 µs, but longer while the GPU does other work.
static constexpr std::chrono::milliseconds kSpinTime{2};
static constexpr std::chrono::microseconds kSleepTime{50};

// The segments under way. A segment's blocks lie in its slot one after the other.
class HostWork::Segments {
 public:
  Segments(Job& job, ipc::BlockCopier& copier) noexcept : job_(job), copier_(copier) {}
  // A GPU may be copying.
  ~Segments() {
    for (Segment& segment : segments_) await(segment);
  }

  Status move() {
    for (size_t number = 0; next_ < job_.parts.blocks.size(); ++number) {
      Segment& segment = segments_[number % kMostSegments];
      finish(segment);
      if (job_.is_stopped.load(std::memory_order_relaxed)) return {};
      AXON_TRY(begin(segment));
    }
    for (size_t i = 0; i < kMostSegments; ++i) finish(segments_[i]);
    return {};
  }

 private:
  struct Segment {
    std::optional<ipc::PinnedPool::Piece> slot;
    std::vector<GpuBlock> blocks;
    std::optional<ipc::BlockCopier::UnderWay> under_way;
  };

  Status begin(Segment& segment) {
    take_blocks(segment);
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
        copier_.copy({.fill = [&] { return addresses_of(copier_, in_slot, job_.kind); },
                      .method = mapping_of(*in_slot.front().remote).method_from(copier_.device())});
    if (!launched.ok()) return std::move(launched.status());
    segment.under_way.emplace(std::move(launched).value());
    return {};
  }

  // Waits for the GPU, and takes what has been read.
  void finish(Segment& segment) {
    if (!segment.under_way) return;
    await(segment);
    const std::byte* place = segment.slot->data();
    for (const GpuBlock& block : segment.blocks) {
      if (!writes()) std::memcpy(block.local, place, block.num_bytes);
      place += block.num_bytes;
    }
  }

  static void await(Segment& segment) noexcept {
    if (!segment.under_way) return;
    const auto spin_until = sync::Clock::now() + kSpinTime;
    while (segment.under_way->flag().load(std::memory_order_acquire) == 0) {
      sync::Clock::now() < spin_until ? std::this_thread::yield() : std::this_thread::sleep_for(kSleepTime);
    }
    segment.under_way.reset();
  }

  // Takes the next blocks, and cuts the last one if necessary.
  void take_blocks(Segment& segment) {
    segment.blocks.clear();
    for (uint64_t left = rpc::kSegmentNumBytes; left != 0 && next_ < job_.parts.blocks.size();) {
      GpuBlock block = job_.parts.blocks[next_];
      const uint64_t length = std::min(left, block.num_bytes - taken_);
      const bool is_last_part = taken_ + length == block.num_bytes;
      block.begin += taken_;
      block.local += taken_;
      block.num_bytes = length;
      segment.blocks.push_back(block);
      left -= length;
      taken_ = is_last_part ? 0 : taken_ + length;
      next_ += is_last_part ? 1 : 0;
    }
  }

  bool writes() const noexcept { return job_.kind == rpc::Transfer::Kind::kWrite; }

  Job& job_;
  ipc::BlockCopier& copier_;
  std::array<Segment, kMostSegments> segments_;
  size_t next_ = 0;     // the first block that is not taken completely
  uint64_t taken_ = 0;  // bytes of it that are
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
