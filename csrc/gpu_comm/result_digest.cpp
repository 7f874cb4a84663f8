#include "gpu_comm/result_digest.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "gpu_comm/pinned_pool.hpp"
#include "ipc/stream_marker.hpp"
#include "kernels/digest.hpp"

namespace axon::gpu_comm {

namespace {

// Waits for the digest of one result. Owns itself.
class PendingDigest final : public engine::Submission, private engine::FlagWaiter {
 public:
  PendingDigest(engine::Engine& engine, std::shared_ptr<engine::ResultCheck> check, engine::ResultCheck::Result result,
                std::shared_ptr<PinnedBlock> sums, size_t num_sums, ipc::StreamMarker written) noexcept
      : engine_(engine),
        check_(std::move(check)),
        result_(std::move(result)),
        sums_(std::move(sums)),
        num_sums_(num_sums),
        written_(std::move(written)) {}

 private:
  void begin() noexcept override { engine_.wait_for_flag(*this, written_.flag()); }
  void complete() noexcept override {}

  // Also called when the engine is closed, before the flag is set.
  void on_flag_set() noexcept override {
    if (is_flag_set()) {
      const auto* const first = reinterpret_cast<const uint64_t*>(sums_->data());
      result_.digest = std::accumulate(first, first + num_sums_, uint64_t{0});
      check_->note_now(std::move(result_));
    }
    delete this;
  }

  engine::Engine& engine_;
  const std::shared_ptr<engine::ResultCheck> check_;
  engine::ResultCheck::Result result_;
  const std::shared_ptr<PinnedBlock> sums_;
  const size_t num_sums_;
  const ipc::StreamMarker written_;
};

}  // namespace

Status check_result(engine::Engine& engine, std::shared_ptr<engine::ResultCheck> check,
                    const engine::Operation& operation, cuda::StreamView stream) {
  std::vector<kernels::DigestPart> parts;
  for (const Buffer& output : operation.arguments.outputs) parts.push_back({output.data, output.num_bytes});
  const size_t num_launches = (parts.size() + kernels::kMostDigestParts - 1) / kernels::kMostDigestParts;
  const size_t num_sums = num_launches * kernels::kDigestBlocks;
  Result<std::shared_ptr<PinnedBlock>> block = PinnedBlock::take(num_sums * sizeof(uint64_t));
  if (!block.ok()) return std::move(block.status());
  auto* sums = reinterpret_cast<uint64_t*>(block.value()->data());
  for (size_t first = 0; first < parts.size(); first += kernels::kMostDigestParts, sums += kernels::kDigestBlocks) {
    const size_t count = std::min(parts.size() - first, kernels::kMostDigestParts);
    AXON_TRY(kernels::digest(std::span(parts).subspan(first, count), first, sums, stream));
  }
  AXON_TRY(stream.record(block.value()->last_use()));
  Result<ipc::StreamMarker> written = ipc::StreamMarker::set(stream);
  if (!written.ok()) return std::move(written.status());
  engine::ResultCheck::Result result{.series = engine::ResultCheck::Series::kDevice,
                                     .number = check->next_on_device(),
                                     .digest = 0,
                                     .call = operation.record()};
  engine.submit_to_drivers(*new PendingDigest(engine, std::move(check), std::move(result), std::move(block).value(),
                                              num_sums, std::move(written).value()));
  return Status();
}

}  // namespace axon::gpu_comm
