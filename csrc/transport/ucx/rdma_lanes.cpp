#include "transport/ucx/rdma_lanes.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <sstream>
#include <system_error>

#include "base/resources.hpp"
#include "transport/ucx/ucx_context.hpp"
#include "transport/ucx/ucx_library.hpp"

namespace axon::transport {

std::vector<std::string> rdma_devices() {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", missing))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

// A line of a resource ends with it: "resource 1  :  md 1  dev 1  flags -- tcp/eth0".
std::vector<Lane> lanes_in(std::string_view context_info) {
  std::vector<Lane> lanes;
  std::istringstream lines{std::string(context_info)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash;
    std::string kind;
    if (!(words >> hash >> kind) || kind != "resource") continue;
    std::string last;
    while (words >> last) {
    }
    const size_t slash = last.find('/');
    if (slash == std::string::npos) continue;
    lanes.push_back({.name = last.substr(0, slash), .device = last.substr(slash + 1)});
  }
  return lanes;
}

// UCX names a port of a device: "mlx5_0:1".
std::vector<Lane> lanes_over(std::span<const std::string> devices, std::span<const Lane> lanes) {
  std::vector<Lane> found;
  std::ranges::copy_if(lanes, std::back_inserter(found), [&](const Lane& lane) {
    return std::ranges::find(devices, lane.device.substr(0, lane.device.find(':'))) != devices.end();
  });
  return found;
}

// UCX tells a context's devices in no other way.
Result<std::vector<Lane>> lanes_of_ucx(const UcxOptions& options) {
  Result<UcxContext> context = open_context(options);
  if (!context.ok()) return std::move(context.status());
  char* text = nullptr;
  size_t num_bytes = 0;
  FILE* const stream = open_memstream(&text, &num_bytes);
  if (stream == nullptr) return out_of("open_memstream", errno);
  ucx->ucp_context_print_info(context.value().get(), stream);
  std::fclose(stream);
  const std::unique_ptr<char, void (*)(void*)> owned(text, &std::free);
  return lanes_in(std::string_view(text, num_bytes));
}

Result<std::vector<Lane>> rdma_lanes(const UcxOptions& options) {
  const std::vector<std::string> devices = rdma_devices();
  if (devices.empty()) return std::vector<Lane>();
  Result<std::vector<Lane>> lanes = lanes_of_ucx(options);
  if (!lanes.ok()) return lanes;
  return lanes_over(devices, lanes.value());
}

}  // namespace axon::transport
