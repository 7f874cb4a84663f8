#include "rpc/core/one_sided/staged_work.hpp"

#include <utility>

#include "rpc/core/connection.hpp"

namespace axon::rpc {

// A slot, until neither its segment nor a transfer uses it.
struct StagedWork::Lease final : engine::Submission {
  Lease(StagedWork& work, Buffer taken) noexcept
      : engine(work.transfer().connection()->engine()), slots(*work.parts_.slots), peer(work.peer()), slot(taken) {}
  void begin() noexcept override {
    slots.give_back(peer, slot);
    delete this;
  }
  void complete() noexcept override {}
  // Any thread.
  static void give_back(void* lease) {
    auto* const self = static_cast<Lease*>(lease);
    if (!self->engine.has_ended()) self->engine.submit_after_completion(*self);
  }

  engine::Engine& engine;
  StagingSlots& slots;
  const transport::PeerId peer;
  const Buffer slot;
};

// One slot's way: its blocks, the copy between them and the slot, and the transfer between the slot and the peer.
class StagedWork::Segment final : public DeviceCopy {
 public:
  Segment(StagedWork& work, std::vector<Block> blocks, Buffer slot) noexcept
      : DeviceCopy(engine_of(work)),
        work_(work),
        blocks_(std::move(blocks)),
        slot_(slot),
        lease_(new Lease(work, slot), &Lease::give_back),
        continuation_(*this) {}

  // The engine has ended while the segment was under way. It must not be destroyed, and does nothing any more.
  void abandon() noexcept { is_abandoned_.store(true, std::memory_order_relaxed); }
  void begin_first() noexcept { work_.writes_ ? copy() : transfer(); }
  void cancel() noexcept;
  void on_copied(Status status) noexcept override;
  // Any thread: the child has ended.
  void on_child_finished(const Status& status) noexcept {
    child_status_ = status.clone();
    engine_of(work_).submit_after_completion(continuation_);
  }

 private:
  struct Continuation final : engine::Submission {
    explicit Continuation(Segment& of) noexcept : segment(of) {}
    void begin() noexcept override { segment.on_child_end(); }
    void complete() noexcept override {}
    Segment& segment;
  };

  static engine::Engine& engine_of(StagedWork& work) noexcept { return work.transfer().connection()->engine(); }
  void copy() noexcept;
  void transfer() noexcept;
  void on_child_end() noexcept;

  StagedWork& work_;
  const std::vector<Block> blocks_;
  const Buffer slot_;
  Owner lease_;
  Counted<Transfer> child_;
  Status child_status_;
  Continuation continuation_;
  std::atomic<bool> is_abandoned_{false};  // relaxed: nothing else is shared then
};

class StagedWork::Child final : public Transfer {
 public:
  Child(Kind kind, std::shared_ptr<Connection> connection, Segment& segment) noexcept
      : Transfer(kind, std::move(connection)), segment_(segment) {}

 private:
  void on_finished(const Status& status) noexcept override { segment_.on_child_finished(status); }
  Segment& segment_;
};

// The device copies between the slot and the blocks, whose bytes lie in the slot one after the other.
void StagedWork::Segment::copy() noexcept {
  std::byte* place = slot_.data;
  for (const Block& block : blocks_) {
    blocks.push_back(work_.writes_ ? CopiedBlock{.source = block.local, .target = place, .num_bytes = block.num_bytes}
                                   : CopiedBlock{.source = place, .target = block.local, .num_bytes = block.num_bytes});
    place += block.num_bytes;
  }
  work_.parts_.device->start(*this);
}

void StagedWork::Segment::transfer() noexcept {
  const Transfer& whole = work_.transfer();
  child_ = Counted<Transfer>::adopt(*new Child(whole.kind(), whole.connection(), *this));
  child_->timeout = whole.timeout;  // the transfer's own deadline comes first
  child_->dtype = whole.dtype;
  child_->reserve(blocks_.size());
  std::byte* place = slot_.data;
  for (const Block& block : blocks_) {
    child_->add(block.remote, block.offset, {.data = place, .num_bytes = block.num_bytes});
    place += block.num_bytes;
  }
  auto share = std::make_shared<Owner>(std::move(lease_));  // shared by the child, which may be drained later
  lease_ = Owner::of(share);
  child_->keep(Owner::of(std::move(share)));
  child_->start_on(whole.connection()->engine());
}

void StagedWork::Segment::cancel() noexcept {
  if (child_.get() != nullptr) work_.transfer().connection()->one_sided().initiator().cancel(*child_);
}

void StagedWork::Segment::on_copied(Status status) noexcept {
  if (is_abandoned_.load(std::memory_order_relaxed)) return;
  if (status.code() == ErrorCode::kAborted) {
    work_.leaks_ = true;
    [[maybe_unused]] auto* const leaked = new Owner(std::move(lease_));
  }
  if (!status.ok() || !work_.writes_ || work_.is_stopped_) {
    return work_.on_segment_end(*this, std::move(status), Text::kBare);
  }
  transfer();
}

void StagedWork::Segment::on_child_end() noexcept {
  if (is_abandoned_.load(std::memory_order_relaxed)) return;
  if (!child_status_.ok() || work_.writes_ || work_.is_stopped_) {
    return work_.on_segment_end(*this, std::move(child_status_), Text::kNamesPeer);
  }
  copy();
}

StagedWork::StagedWork(Transfer& transfer, Parts parts) noexcept
    : DeviceWork(transfer),
      Waiter(transfer.connection()->engine(), transfer.connection()->peer(), *parts.device),
      writes_(transfer.kind() == Transfer::Kind::kWrite),
      parts_(std::move(parts)) {}

// If the engine has ended before, the device may still be using the memory.
StagedWork::~StagedWork() {
  StagingSlots::Waiter::unlink();
  for (std::unique_ptr<Segment>& segment : segments_) {
    segment.release()->abandon();
    leaks_ = true;
  }
  if (leaks_) [[maybe_unused]]
    auto* const leaked = new Owner(std::move(parts_.owner));
}

void StagedWork::begin() noexcept {
  if (parts_.start_flag == nullptr || is_stopped_) return pump();
  awaits_flag_ = true;
  transfer().connection()->engine().wait_for_flag(*this, *parts_.start_flag);
}

void StagedWork::on_flag_set() noexcept {
  awaits_flag_ = false;
  if (parts_.start_flag->load(std::memory_order_acquire) == 0) stop();  // the engine has ended
  pump();
}

void StagedWork::stop() noexcept {
  if (std::exchange(is_stopped_, true)) return;
  StagingSlots::Waiter::unlink();
  if (std::exchange(awaits_flag_, false)) engine::FlagWaiter::unlink();
  for (size_t i = 0; i < segments_.size(); ++i) segments_[i]->cancel();
  end_if_over();
}

// Nested calls, for what ends at once, leave it to the outer one.
void StagedWork::pump() noexcept {
  if (std::exchange(is_pumping_, true)) return;
  while (!is_stopped_ && status_.ok() && has_blocks() && segments_.size() < kMostSegments) {
    const std::optional<Buffer> slot = parts_.slots->take(*this);
    if (!slot) break;
    segments_.push_back(std::make_unique<Segment>(*this, cutter_.take(parts_.blocks, kSegmentNumBytes), *slot));
    segments_.back()->begin_first();
  }
  is_pumping_ = false;
  end_if_over();
}

void StagedWork::on_no_slot(const Status& why) noexcept {
  if (status_.ok()) status_ = Status(why.code(), "this process " + why.message());
  end_if_over();
}

void StagedWork::on_segment_end(Segment& segment, Status status, Text text) noexcept {
  if (status_.ok() && !is_stopped_) {
    status_ = std::move(status);
    text_ = text;
  }
  std::erase_if(segments_, [&](const std::unique_ptr<Segment>& each) { return each.get() == &segment; });
  pump();
}

void StagedWork::end_if_over() noexcept {
  if (is_pumping_ || awaits_flag_ || has_ended_ || !segments_.empty()) return;
  if (!is_stopped_ && status_.ok() && has_blocks()) return;
  has_ended_ = true;
  StagingSlots::Waiter::unlink();
  end(status_, text_);
}

}  // namespace axon::rpc
