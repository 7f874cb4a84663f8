#include "transport/ucx/ucx_library.hpp"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>

#include <string>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "transport/ucx/ucx.hpp"

namespace axon::transport {

const UcxFunctions* ucx = nullptr;

namespace {

constexpr const char* kUcxLibrary = "libucp.so.0";

// Variables that UCX reads while it is being loaded. Values set by the user take precedence.
constexpr std::pair<const char*, const char*> kDefaultsOfWheel[] = {
    // Do not patch the process's memory functions. The patches keep caches of registered memory valid, but no transport
    // of the wheel has such a cache, and installing the patches takes 0.4 s.
    {"UCX_MEM_EVENTS", "n"},
    // Keep UCX's errors off stdout, such as one about a peer that exited before its segment was attached. Our own
    // errors name the peer.
    {"UCX_LOG_LEVEL", "fatal"},
};

// Sets the defaults in the environment during its lifetime.
class ScopedDefaults {
 public:
  ScopedDefaults() {
    for (const auto& [name, value] : kDefaultsOfWheel) {
      if (config::is_set(name)) continue;
      setenv(name, value, 0);
      ours_.push_back(name);
    }
  }
  ~ScopedDefaults() {
    for (const char* const name : ours_) unsetenv(name);
  }
  ScopedDefaults(const ScopedDefaults&) = delete;
  ScopedDefaults& operator=(const ScopedDefaults&) = delete;

 private:
  std::vector<const char*> ours_;
};

std::string& folder_of_wheel() {
  static std::string folder;
  return folder;
}

// The libraries remain separate from those of other users in the process, as those of a Python extension do. A UCX that
// another package has already loaded from the same folder keeps its settings.
void* open_library() {
  constexpr int kMode = RTLD_NOW | RTLD_LOCAL;
  if (folder_of_wheel().empty()) return dlopen(kUcxLibrary, kMode);
  const ScopedDefaults defaults;
  return dlopen((folder_of_wheel() + "/" + kUcxLibrary).c_str(), kMode);
}

struct UcxVersion {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
};

UcxVersion version_of(const UcxFunctions& functions) {
  UcxVersion version;
  functions.ucp_get_version(&version.major, &version.minor, &version.release);
  return version;
}

std::string text_of(const UcxVersion& version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor) + "." + std::to_string(version.release);
}

Status unusable(const std::string& reason) {
  const std::string remedy =
      folder_of_wheel().empty()
          ? "Install the package libucx-cu13, or add the folder of your own UCX to LD_LIBRARY_PATH"
          : "Install the package libucx-cu13 again (pip install --force-reinstall libucx-cu13)";
  return {ErrorCode::kTransport, reason + ". " + remedy + ", or do without UCX (AXON_TRANSPORTS=rails,rings,cma,cuda)"};
}

Status load() {
  void* const library = open_library();
  if (library == nullptr) return unusable(std::string("UCX cannot be loaded: ") + dlerror());
  link_map* opened = nullptr;
  dlinfo(library, RTLD_DI_LINKMAP, &opened);
  const std::string file = opened->l_name;
  const std::string needed = "UCX " + std::to_string(UCP_API_MAJOR) + "." + std::to_string(UCP_API_MINOR);
  static const UcxFunctions functions(library);
  if (functions.missing() != nullptr)
    return unusable(file + " has no function " + functions.missing() + ", and so is not " + needed);
  // UCX's own check, in ucp_init_version(), only warns.
  const UcxVersion version = version_of(functions);
  if (version.major != UCP_API_MAJOR || version.minor < UCP_API_MINOR)
    return unusable(file + " is UCX " + text_of(version) + ", but " + needed + " is needed, as in the build");
  ucx = &functions;
  return Status();
}

}  // namespace

UcxSymbol UcxFunctions::find(const char* name) noexcept {
  const UcxSymbol found{dlsym(library_, name)};
  if (found.address == nullptr) missing_ = name;
  return found;
}

void use_ucx_of_wheel(std::string folder) {
  folder_of_wheel() = std::move(folder);
}

Status load_ucx() {
  static const Status loaded = load();
  return loaded.clone();
}

Result<std::string> ucx_version() {
  AXON_TRY(load_ucx());
  return text_of(version_of(*ucx));
}

}  // namespace axon::transport
