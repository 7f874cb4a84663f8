#include "rpc/core/one_sided/transfer_plan.hpp"

#include <string>

namespace axon::rpc {

static Status invalid(std::string why) {
  return {ErrorCode::kInvalidArgument, "plan: " + std::move(why)};
}

static Status check(const BlockLayout& layout, uint64_t num_bytes, const char* side) {
  if (layout.num_bytes == 0) return invalid(std::string(side) + " blocks have 0 bytes; allowed: 1 or more");
  if (layout.stride < layout.num_bytes) {
    return invalid(std::string(side) + " blocks of " + std::to_string(layout.num_bytes) + " bytes have a stride of " +
                   std::to_string(layout.stride) + " bytes; allowed: their length or more");
  }
  if (layout.count == 0) return {};
  uint64_t end = 0;
  const bool overflows = __builtin_mul_overflow(layout.count - 1, layout.stride, &end) ||
                         __builtin_add_overflow(end, layout.offset, &end) ||
                         __builtin_add_overflow(end, layout.num_bytes, &end);
  if (!overflows && end <= num_bytes) return {};
  return invalid(std::to_string(layout.count) + " " + side + " blocks of " + std::to_string(layout.num_bytes) +
                 " bytes, at a stride of " + std::to_string(layout.stride) + " from offset " +
                 std::to_string(layout.offset) + " on, exceed the memory of " + std::to_string(num_bytes) + " bytes");
}

// Returns where each block begins.
static Result<std::vector<std::byte*>> placed(const TransferPlan::Local& local) {
  std::vector<std::byte*> places;
  places.reserve(local.layout.count);
  size_t part = 0;
  uint64_t begin = 0;  // of the part
  for (uint64_t i = 0; i < local.layout.count; ++i) {
    const uint64_t offset = local.layout.offset + i * local.layout.stride;
    while (offset - begin >= local.memory[part].num_bytes) begin += local.memory[part++].num_bytes;
    if (local.layout.num_bytes > local.memory[part].num_bytes - (offset - begin)) {
      return invalid("local block " + std::to_string(i) + " crosses the end of part " + std::to_string(part) +
                     "; allowed: blocks within one part of the memory");
    }
    places.push_back(local.memory[part].data + (offset - begin));
  }
  return places;
}

Result<TransferPlan> TransferPlan::make(const Local& local, Remote remote) {
  uint64_t num_local_bytes = 0;
  for (const Buffer& part : local.memory) num_local_bytes += part.num_bytes;
  AXON_TRY(check(local.layout, num_local_bytes, "local"));
  AXON_TRY(check(remote.layout, remote.num_bytes, "remote"));
  if (local.layout.num_bytes != remote.layout.num_bytes) {
    return invalid("local blocks have " + std::to_string(local.layout.num_bytes) + " bytes, and remote ones " +
                   std::to_string(remote.layout.num_bytes) + "; allowed: equal lengths");
  }
  Result<std::vector<std::byte*>> places = placed(local);
  if (!places.ok()) return std::move(places.status());
  return TransferPlan(std::move(places).value(), std::move(remote));
}

static Status out_of_range(const char* side, size_t position, int32_t id, uint64_t count) {
  return {ErrorCode::kInvalidArgument, "post: " + std::string(side) + "_ids[" + std::to_string(position) + "] is " +
                                           std::to_string(id) + "; allowed: 0 to " + std::to_string(count) +
                                           ", exclusive"};
}

Status TransferPlan::check_ids(std::span<const int32_t> local_ids, std::span<const int32_t> remote_ids) const {
  if (local_ids.size() != remote_ids.size()) {
    return {ErrorCode::kInvalidArgument, "post: " + std::to_string(local_ids.size()) + " local and " +
                                             std::to_string(remote_ids.size()) +
                                             " remote ids; allowed: as many of both"};
  }
  for (size_t i = 0; i < local_ids.size(); ++i) {  // a negative one becomes too large
    if (static_cast<uint64_t>(local_ids[i]) >= local_.size()) {
      return out_of_range("local", i, local_ids[i], local_.size());
    }
    if (static_cast<uint64_t>(remote_ids[i]) >= remote_.layout.count) {
      return out_of_range("remote", i, remote_ids[i], remote_.layout.count);
    }
  }
  return {};
}

Status TransferPlan::add_to(Transfer& transfer, std::span<const int32_t> local_ids,
                            std::span<const int32_t> remote_ids) const {
  transfer.reserve(local_ids.size());
  return for_each(local_ids, remote_ids,
                  [&](uint64_t offset, Buffer local) { transfer.add(remote_.memory, offset, local); });
}

}  // namespace axon::rpc
