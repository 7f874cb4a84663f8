// The events of a group's operations in a trace: from the call to the end for operations of the engine, and the launch
// of kernels. `track` is the group's, see trace::add_track.
//
//   if (trace::is_on()) [[unlikely]]
//     trace_begin(track_, operation, "two_shot");
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.hpp"
#include "engine/operation.hpp"

namespace axon::engine {

void trace_begin(uint32_t track, const Operation& operation, std::string_view algorithm);
void trace_end(uint32_t track, const Operation& operation, const Status& status);
// `call` describes the launch, and `arguments` are the operation's.
void trace_launch(uint32_t track, const CallRecord& call, const collectives::CollectiveArguments& arguments,
                  std::string_view kernel);

}  // namespace axon::engine
