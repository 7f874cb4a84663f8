#include "base/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/log.hpp"

namespace axon::config {

static constexpr std::string_view kPrefix = "AXON_";
static constexpr std::string_view kUcxPrefix = "AXON_UCX_";

static bool is_log_level(std::string_view value) noexcept {
  return log::parse(value).has_value();
}

static bool is_number_up_to(unsigned most, std::string_view value) noexcept {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  return error == std::errc() && end == value.data() + value.size() && number <= most;
}

// The bound is the number of slices that fit into an arena's table of detach notices (ipc/arena.hpp).
static bool is_arena_size(std::string_view value) noexcept {
  return is_number_up_to(16384, value);
}

static bool is_workspace_size(std::string_view value) noexcept {
  return is_number_up_to(65536, value);
}

// Each transport at most once, in any order; exactly one of auto, ucx and rails.
static bool is_list_of_transports(std::string_view value) noexcept {
  static constexpr std::string_view kNames[] = {"auto", "ucx", "rails", "rings", "cma", "cuda"};
  bool named[std::size(kNames)]{};
  for (bool more = true; more;) {
    const size_t comma = value.find(',');
    const auto* const name = std::ranges::find(kNames, value.substr(0, comma));
    if (name == std::end(kNames) || std::exchange(named[name - kNames], true)) return false;
    more = comma != std::string_view::npos;
    value.remove_prefix(more ? comma + 1 : value.size());
  }
  return named[0] + named[1] + named[2] == 1;
}

static bool is_switch(std::string_view value) noexcept {
  return value == "0" || value == "1";
}

// The bound is OutgoingStripes::kMostRails (transport/rails/outgoing_stripes.hpp).
static bool is_number_of_rails(std::string_view value) noexcept {
  return value == "auto" || is_number_up_to(16, value);
}

static bool is_number_of_threads(std::string_view value) noexcept {
  return value == "auto" || (is_number_up_to(16, value) && value != "0");
}

static bool is_compression(std::string_view value) noexcept {
  return value == "auto" || value == "never" || value == "always";
}

static constexpr Setting kSettings[] = {
    {"AXON_ALGO", ReadBy::kEngine, "", "operation=algorithm or operation=kernel, several separated by semicolons",
     "Runs these operations with these algorithms (CPU tensors) or kernels (CUDA tensors), whatever the message size. "
     "Must be the same on all ranks. `python -m torch_axon.config --algorithms` prints the resulting choices.",
     nullptr},
    {"AXON_ARENA_MB", ReadBy::kEngine, "64", "0 to 16384",
     "MiB of each GPU's memory that a process reserves for its groups' kernels. If a group finds no room there, it "
     "sends its CUDA tensors through host memory.",
     is_arena_size},
    {"AXON_CHECK_RESULTS", ReadBy::kEngine, "0", "0 or 1",
     "If 1, ranks compare digests of what all_reduce, broadcast and all_gather have given them, beside their work. A "
     "rank whose result has other bits than those of most ranks is named, and the group fails. Must be the same on all "
     "ranks.",
     is_switch},
    {"AXON_COMPAT", ReadBy::kImport, "1", "0 or 1",
     "If 1, functions of torch.distributed that support only Gloo and NCCL are patched to support axon's groups.",
     is_switch},
    {"AXON_COMPRESS", ReadBy::kEngine, "auto", "auto, never or always",
     "Whether rails compress bfloat16 and float32 tensors, without loss. auto: where a rail is measured to be slower "
     "than the codec. never: nothing that this process sends. always: wherever it makes data shorter, for tests.",
     is_compression},
    {"AXON_COPY_THREADS", ReadBy::kEngine, "auto", "auto, or 1 to 16",
     "Threads that share each copy of 2 MiB or more from or to another process of this host. auto: the cores of this "
     "process, divided among the processes of the host that it exchanges data with, but at most 4.",
     is_number_of_threads},
    {"AXON_EXACT", ReadBy::kEngine, "0", "0 or 1",
     "If 1, sums of float16 and bfloat16 tensors are rounded only once, whatever the algorithm. If 0, collectives "
     "between hosts also round the sum of each host, which halves the bytes that they move. Must be the same on all "
     "ranks.",
     is_switch},
    {"AXON_LOG", ReadBy::kEngine, "warn", "error, warn, info or debug",
     "The least severe level that is written to stderr; the levels before it are written, too.", is_log_level},
    {"AXON_RAILS", ReadBy::kEngine, "auto", "auto, or 0 to 16",
     "TCP connections (rails) over which messages of more than 256 KiB are spread between two processes of different "
     "hosts. Each has a thread at either end. auto: one for every four cores of a process, at least 1 (2 with bbr) and "
     "at "
     "most 4; processes of a group on one host share its cores. With fewer than four cores, fast links take none. 0: "
     "none; a process with 0 accepts none either.",
     is_number_of_rails},
    {"AXON_RAIL_DEVICES", ReadBy::kEngine, "", "names of network devices, separated by commas",
     "The devices at which this process accepts rails: the rails of each peer are spread over their addresses. Without "
     "it, the devices that UCX may use (UCX_NET_DEVICES) take turns if they have addresses. Otherwise all rails use "
     "one address of this host that the peer reaches, in a subnet of the peer if there is one.",
     nullptr},
    {"AXON_REPRODUCIBLE", ReadBy::kEngine, "0", "0 or 1",
     "If 1, every reduction adds each element's operands in rank order and rounds once, whatever the tensor's size, "
     "the algorithm and the hosts. Kernels between the GPUs of one host always do. Reductions on several ranks of "
     "several hosts then move more bytes between hosts. Must be the same on all ranks.",
     is_switch},
    {"AXON_TRACE", ReadBy::kEngine, "", "a file; %r in its name becomes the rank",
     "File to which each rank writes a Chrome trace of its operations. Without %r, .rank0 and so on are inserted "
     "before the ending.",
     nullptr},
    {"AXON_TRANSPORTS", ReadBy::kEngine, "auto,rings,cma,cuda", "auto, ucx or rails, and any of rings, cma, cuda",
     "The transports that move data. With rails, all messages between hosts use authenticated TCP connections of "
     "torch_axon's own: UCX is not used, and opens no port. With auto, they do too, unless UCX has an RDMA device that "
     "is up (InfiniBand, RoCE) on both hosts and connects the two: then they use UCX. With ucx, they use UCX in any "
     "case, and long ones rails (AXON_RAILS) where only TCP connects the hosts; all processes must name it then, or "
     "none. Without rings, messages between processes of one host go over rails, or with ucx over UCX. Without cma, "
     "long messages are copied through the rings, and no process reads memory of another one that is not shared with "
     "it. Without cuda, no kernels move data between the GPUs of one host, and CUDA tensors go through host memory.",
     is_list_of_transports},
    {"AXON_WORKSPACE_MB", ReadBy::kEngine, "1024", "0 to 65536",
     "MiB of each GPU's memory that a group may use to move data during matrix products (torch.ops.axon). Operations "
     "that need more communicate first. Must be the same on all ranks.",
     is_workspace_size},
    {"AXON_SECRET", ReadBy::kRuntime, "", "16 to 1024 bytes",
     "The secret that runtimes which connect at (host, port) must share, unless the program gives them one. Never "
     "printed.",
     nullptr,
     /*is_secret=*/true},
    {"AXON_UCX_ROOT", ReadBy::kBuild, "", "a folder",
     "Prefix of the UCX installation to build against and to load, in place of the libucx wheel.", nullptr},
    {"AXON_CUDA", ReadBy::kBuild, "1", "0 or 1", "If 1, the device code is compiled.", nullptr},
    {"AXON_CUDA_ARCHITECTURES", ReadBy::kBuild, "", "numbers as CMake's CMAKE_CUDA_ARCHITECTURES, separated by commas",
     "The GPUs for which device code is compiled: 90 stands for compute capability 9.0. Without it, those of this "
     "machine, or 90 if it has none. make wheel compiles for 8.0 and all later ones.",
     nullptr},
    {"AXON_CUDA_ROOT", ReadBy::kBuild, "", "a folder", "Folder of nvcc and its headers, in place of their wheels.",
     nullptr},
    {"AXON_TESTS", ReadBy::kBuild, "0", "0 or 1", "If 1, the core's tests are built with the extension.", nullptr},
    {"AXON_BUILD_DIR", ReadBy::kBuild, "", "a folder", "Folder that keeps CMake's files between builds.", nullptr},
    {"AXON_TEST_BACKEND", ReadBy::kTests, "axon", "a backend of torch",
     "The backend that the Python tests use; another one shows the behaviour of torch itself.", nullptr},
};

std::span<const Setting> settings() noexcept {
  return kSettings;
}

static const char* look_up(std::string_view name) {
  return std::getenv(std::string(name).c_str());
}

std::string text(std::string_view name) {
  if (const char* value = look_up(name)) return value;
  const auto* setting = std::ranges::find(kSettings, name, &Setting::name);
  return setting == std::end(kSettings) ? "" : setting->fallback;
}

std::optional<size_t> number(std::string_view name) {
  const std::string value = text(name);
  size_t found = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), found);
  return error == std::errc() && end == value.data() + value.size() ? std::optional(found) : std::nullopt;
}

bool is_set(std::string_view name) {
  return look_up(name) != nullptr;
}

bool has_transport(std::string_view transport) {
  return text("AXON_TRANSPORTS").find(transport) != std::string::npos;
}

// Returns how many letters must be inserted, removed, changed, or swapped with a neighbour (optimal string alignment).
static size_t distance(std::string_view left, std::string_view right) {
  std::vector<size_t> before_last(right.size() + 1);
  std::vector<size_t> last(right.size() + 1);
  std::vector<size_t> row(right.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= left.size(); ++i) {
    before_last = std::exchange(last, row);
    row[0] = i;
    for (size_t j = 1; j <= right.size(); ++j) {
      const size_t changed = last[j - 1] + (left[i - 1] == right[j - 1] ? 0 : 1);
      row[j] = std::min({changed, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && left[i - 1] == right[j - 2] && left[i - 2] == right[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row.back();
}

const Setting* nearest(std::string_view name) noexcept {
  // Among equally distant names, the one of the same length wins: letters are swapped more often than forgotten.
  const auto difference = [&](const Setting& setting) {
    const std::string_view other = setting.name;
    return std::pair(distance(name, other), std::max(name.size(), other.size()) - std::min(name.size(), other.size()));
  };
  // Up to half of the letters following the prefix may differ; beyond that it is another word.
  const size_t tolerated = (name.size() - std::min(name.size(), kPrefix.size()) + 1) / 2;
  const Setting* best = nullptr;
  std::pair least(tolerated + 1, size_t{0});
  for (const Setting& setting : kSettings) {
    if (const auto found = difference(setting); found < least) std::tie(best, least) = std::pair(&setting, found);
  }
  return best;
}

static bool is_known(std::string_view name) noexcept {
  return std::ranges::find(kSettings, name, &Setting::name) != std::end(kSettings);
}

// Calls use(name, value) for each variable whose name has this prefix.
template <typename Use>
static void for_each_variable(std::string_view prefix, Use use) {
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line = *entry;
    const size_t equals = line.find('=');
    if (!line.starts_with(prefix) || equals == std::string_view::npos) continue;
    use(line.substr(0, equals), line.substr(equals + 1));
  }
}

std::vector<std::string> unknown_names() {
  std::vector<std::string> names;
  for_each_variable(kPrefix, [&](std::string_view name, std::string_view) {
    if (!name.starts_with(kUcxPrefix) && !is_known(name)) names.emplace_back(name);
  });
  return names;
}

std::vector<std::pair<std::string, std::string>> ucx_settings() {
  std::vector<std::pair<std::string, std::string>> found;
  for_each_variable(kUcxPrefix, [&](std::string_view name, std::string_view value) {
    if (!is_known(name)) found.emplace_back(name.substr(kUcxPrefix.size()), value);
  });
  return found;
}

Status check_environment() {
  for (const std::string& name : unknown_names()) {
    const Setting* meant = nearest(name);
    log::warn("unknown environment variable " + name +
              (meant ? "; did you mean " + std::string(meant->name) + "?" : ""));
  }
  for (const Setting& setting : kSettings) {
    const char* value = look_up(setting.name);
    if (value == nullptr || setting.accepts == nullptr || setting.accepts(value)) continue;
    return {ErrorCode::kInvalidArgument,
            std::string(setting.name) + " is '" + value + "'; allowed: " + setting.allowed};
  }
  return {};
}

}  // namespace axon::config
