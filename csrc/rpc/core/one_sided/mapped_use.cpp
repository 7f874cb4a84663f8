#include "rpc/core/one_sided/mapped_use.hpp"

#include <string>
#include <utility>

#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/denials.hpp"

namespace axon::rpc {

namespace {

class EndOfUse final : public engine::Submission {
 public:
  explicit EndOfUse(std::shared_ptr<RemoteMemory> memory) noexcept : memory_(std::move(memory)) {}
  void begin() noexcept override {
    memory_->connection()->one_sided().initiator().end_use(*memory_);
    delete this;
  }
  void complete() noexcept override {}

 private:
  const std::shared_ptr<RemoteMemory> memory_;  // shared with transfers and slices
};

}  // namespace

Result<MappedUse> MappedUse::begin(std::shared_ptr<RemoteMemory> memory, uint64_t offset, uint64_t num_bytes) {
  if (memory->path() != RemoteMemory::Path::kMapped) {
    return Status(ErrorCode::kInvalidArgument, "the path of region '" + memory->region() + "' is '" +
                                                   memory->name_of_path() + "'; allowed: 'shared memory'");
  }
  const size_t extent = memory->extent_at(offset);
  const uint64_t begin = offset - memory->begin_of(extent);
  if (extent == memory->extents().size() || num_bytes > memory->extents()[extent].num_bytes - begin) {
    return Status(ErrorCode::kInvalidArgument, "offset " + std::to_string(offset) + " and " +
                                                   std::to_string(num_bytes) +
                                                   " bytes are not in one part of region '" + memory->region() + "'");
  }
  if (!memory->connection()->one_sided().initiator().begin_use(*memory)) return region_is_closed(memory->region());
  const uint64_t address = memory->extents()[extent].address + begin + memory->mapping_here().shift;
  return MappedUse(std::move(memory), reinterpret_cast<std::byte*>(address));
}

MappedUse::~MappedUse() {
  if (!memory_) return;
  engine::Engine& engine = memory_->connection()->engine();
  if (engine.is_forked() || engine.has_ended()) return;
  engine.submit_after_completion(*new EndOfUse(std::move(memory_)));
}

}  // namespace axon::rpc
