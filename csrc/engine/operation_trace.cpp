#include "engine/operation_trace.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/trace.hpp"

namespace axon::engine {

static int64_t num_bytes_of(const collectives::CollectiveArguments& arguments) {
  const auto total = [](const auto& shards) {
    return std::transform_reduce(shards.begin(), shards.end(), size_t{0}, std::plus<>(),
                                 [](const auto& shard) { return shard.num_bytes; });
  };
  return static_cast<int64_t>(std::max(total(arguments.inputs), total(arguments.outputs)));
}

static const char* name_of(const CallRecord& call) noexcept {
  if (call.direction == Direction::kCollective) return name_of(call.kind);
  return call.direction == Direction::kSend ? "send" : "receive";
}

static trace::Details details_of(const CallRecord& call, const collectives::CollectiveArguments& arguments) {
  trace::Details details;
  details.add("call", call.describe()).add("bytes", num_bytes_of(arguments));
  if (!call.call_site.empty()) details.add("site", call.call_site);
  if (call.direction == Direction::kCollective) return details.add("sequence", call.sequence);
  return details.add("peer", call.peer);
}

// While an operation runs, nothing else has its address.
static uint64_t id_of(const Operation& operation) noexcept {
  return reinterpret_cast<uintptr_t>(&operation);
}

void trace_begin(uint32_t track, const Operation& operation, std::string_view algorithm) {
  const CallRecord call = operation.record();
  trace::Details details = details_of(call, operation.arguments);
  if (!algorithm.empty()) details.add("algorithm", algorithm);
  trace::write({.phase = trace::Phase::kBegin,
                .name = name_of(call),
                .id = id_of(operation),
                .track = track,
                .at = call.called_at,
                .details = std::move(details)});
}

void trace_end(uint32_t track, const Operation& operation, const Status& status) {
  trace::Details details;
  if (!status.ok()) details.add("error", status.message());
  trace::write({.phase = trace::Phase::kEnd,
                .name = name_of(operation.record()),
                .id = id_of(operation),
                .track = track,
                .at = sync::Clock::now(),
                .details = std::move(details)});
}

void trace_launch(uint32_t track, const CallRecord& call, const collectives::CollectiveArguments& arguments,
                  std::string_view kernel) {
  trace::write({.phase = trace::Phase::kInstant,
                .name = name_of(call),
                .id = track,
                .track = track,
                .at = call.called_at,
                .details = details_of(call, arguments).add("kernel", kernel)});
}

}  // namespace axon::engine
