#include "engine/network.hpp"

#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "base/log.hpp"
#include "base/resources.hpp"
#include "transport/preferred/preferred.hpp"
#include "transport/rails/rail_address.hpp"
#include "transport/rails/rails.hpp"
#include "transport/rings/rings.hpp"
#include "transport/sockets/sockets.hpp"
#include "transport/ucx/rdma_lanes.hpp"
#include "transport/ucx/ucx.hpp"

namespace axon::engine {

namespace {

enum class UcxMemory : uint8_t { kShared, kNone };

bool is_set(const std::string& ucx_name) {
  return config::is_set("UCX_" + ucx_name) || config::is_set("AXON_UCX_" + ucx_name);
}

// UCX's settings, unless the user sets them. No SysV segments: they are attached late, and UCX prints an error to
// stdout if a segment's owner has left meanwhile. A killed owner leaks them. No CUDA: UCX gets only host memory. An
// element of a queue in shared memory gets room for 216 bytes after its header, not 88. So a call with a small tensor
// fits into one element. A round trip then takes 1.36 µs, not 1.60 (a single call from C++, 64 bytes).
transport::UcxOptions ucx_options(UcxMemory memory) {
  transport::UcxOptions options;
  const auto set = [&](const std::string& name, const char* value) {
    if (!is_set(name)) options.settings.emplace_back(name, value);
  };
  set("TLS", memory == UcxMemory::kShared ? "^sysv,cuda" : "^posix,sysv,cuda");
  set("POSIX_FIFO_ELEM_SIZE", "256");
  return options;
}

// UCX's own shared memory takes 4.2 MiB of /dev/shm per process; without rings it carries small messages.
constexpr size_t kUcxMemory = size_t{5} << 20;

Result<std::unique_ptr<transport::Transport>> open_ucx_without_memory(const std::string& why) {
  log::warn("messages between processes of this host take TCP: UCX wants " + std::to_string(kUcxMemory >> 20) +
            " MiB of shared memory for each process and finds " + describe_shared_memory() + why +
            ". A container gets more by docker run --shm-size=1g");
  return open_ucx_transport(ucx_options(UcxMemory::kNone));
}

// Rings need no /dev/shm: their memory has no name, and counts as the process's own. Processes that a ring does not
// reach, such as another user's, are out of reach of UCX's shared memory, too: both are opened through /proc/PID/fd. So
// UCX is restricted to TCP where there are rings.
Result<std::unique_ptr<transport::Transport>> open_ucx(transport::RingUse rings) {
  if (rings != transport::RingUse::kNever) return open_ucx_transport(ucx_options(UcxMemory::kNone));
  const bool is_ours_to_choose = !is_set("TLS");
  if (is_ours_to_choose && !is_set("POSIX_DIR") && room_in_shared_memory() < kUcxMemory) {
    return open_ucx_without_memory("");
  }
  auto opened = open_ucx_transport(ucx_options(UcxMemory::kShared));
  if (opened.ok()) return opened;
  // Other processes may have taken the memory meanwhile.
  if (is_ours_to_choose) return open_ucx_without_memory(" (" + opened.status().message() + ")");
  return opened.status().followed_by("Shared memory: " + describe_shared_memory());
}

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  std::istringstream stream(list);
  for (std::string name; std::getline(stream, name, ',');) names.push_back(name);
  return names;
}

// A user who restricts UCX to some devices wants no rails on others. Devices that are not of TCP have no address.
std::vector<std::string> devices_of_ucx() {
  for (const char* const variable : {"AXON_UCX_NET_DEVICES", "UCX_NET_DEVICES"}) {
    const std::string list = config::text(variable);
    if (!list.empty()) return list == "all" ? std::vector<std::string>() : names_in(list);
  }
  return {};
}

transport::Compression compression() {
  const std::string setting = config::text("AXON_COMPRESS");
  if (setting == "never") return transport::Compression::kNever;
  return setting == "always" ? transport::Compression::kAlways : transport::Compression::kAuto;
}

transport::RailOptions configured_rails() {
  transport::RailOptions options;
  options.num_rails = config::number("AXON_RAILS");
  options.devices = names_in(config::text("AXON_RAIL_DEVICES"));
  options.compression = compression();
  return options;
}

transport::RailOptions rails_above_ucx() {
  transport::RailOptions options = configured_rails();
  if (!options.devices.empty()) return options;
  options.devices = devices_of_ucx();
  if (transport::addresses_of_devices(options.devices).empty()) {
    options.num_rails = 0;
    options.why_none = "no device of this host has an address for other hosts";
  }
  return options;
}

// Short messages take UCX.
Result<std::unique_ptr<transport::Transport>> open_rails_above_ucx(transport::RingUse rings) {
  auto ucx = open_ucx(rings);
  if (!ucx.ok()) return std::move(ucx.status());
  return with_rails(std::move(ucx).value(), rails_above_ucx());
}

// Without other settings, rails may use the devices to which a user restricts UCX. Their names may be of RDMA devices.
transport::RailOptions rails_for_all_messages() {
  transport::RailOptions options = configured_rails();
  if (!options.devices.empty()) return options;
  options.devices = devices_of_ucx();
  const bool are_named = !options.devices.empty();
  if (are_named && transport::addresses_of_devices(options.devices).empty()) options.devices.clear();
  return options;
}

// All messages take rails, which share a port, but for those to peers that UCX connects over RDMA. Null: no such ones.
Result<std::unique_ptr<transport::Transport>> open_rails(std::unique_ptr<transport::Transport> ucx) {
  transport::RailOptions options = rails_for_all_messages();
  auto sockets = transport::open_sockets(options.devices);
  if (!sockets.ok()) return sockets.status().followed_by("all messages between hosts take rails (AXON_TRANSPORTS)");
  options.port = sockets.value().port;
  if (ucx == nullptr) return with_rails(std::move(sockets.value().transport), options);
  auto joined = with_preferred(std::move(ucx), std::move(sockets).value());
  if (!joined.ok()) return std::move(joined.status());
  return with_rails(std::move(joined).value(), options);
}

// Without TCP, UCX opens no port of it. Returns null if UCX has no RDMA device here; it is not initialised then.
Result<std::unique_ptr<transport::Transport>> open_ucx_over_rdma() {
  transport::UcxOptions options;
  if (!is_set("TLS")) options.settings.emplace_back("TLS", "^tcp,posix,sysv,cuda");
  auto lanes = transport::rdma_lanes(options);
  if (!lanes.ok()) return std::move(lanes.status());
  if (lanes.value().empty()) return std::unique_ptr<transport::Transport>();
  return open_ucx_transport(options);
}

// Rails connect any two hosts, so a UCX that does not start is no reason to give up.
Result<std::unique_ptr<transport::Transport>> open_best() {
  auto ucx = open_ucx_over_rdma();
  if (ucx.ok()) return open_rails(std::move(ucx).value());
  log::warn("messages between hosts take TCP, although this one has RDMA devices: " + ucx.status().message());
  return open_rails(nullptr);
}

Result<std::unique_ptr<transport::Transport>> open_chosen(transport::RingUse rings) {
  if (config::has_transport("ucx")) return open_rails_above_ucx(rings);
  return config::has_transport("rails") ? open_rails(nullptr) : open_best();
}

transport::RingUse use_of_rings() {
  if (!config::has_transport("rings")) return transport::RingUse::kNever;
  return config::has_transport("cma") ? transport::RingUse::kAlways : transport::RingUse::kCopies;
}

}  // namespace

// The network, rings and the engine itself use some 20.
static constexpr size_t kDescriptorsOfAnEngine = 24;
// The progress thread, and UCX's, without which an assertion of UCX ends the process (UCX 1.22), or that of handshakes.
static constexpr size_t kThreadsOfAnEngine = 2;

Result<std::unique_ptr<transport::Transport>> open_network() {
  AXON_TRY(check_descriptors(kDescriptorsOfAnEngine, "start torch_axon"));
  AXON_TRY(check_threads(kThreadsOfAnEngine));
  const transport::RingUse rings = use_of_rings();
  auto network = open_chosen(rings);
  if (!network.ok()) return std::move(network.status());
  return with_rings(std::move(network).value(), rings);
}

}  // namespace axon::engine
