#include "cuda/nvlink.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "base/hexadecimal.hpp"
#include "cuda/error.hpp"

namespace axon::cuda {
namespace {

// Those that CUDA shows to this process, in its order.
const std::vector<DeviceUuid>& visible_devices() {
  static const std::vector<DeviceUuid> devices = [] {
    std::vector<DeviceUuid> found;
    for (int device = 0; device < num_devices(); ++device) {
      Result<DeviceUuid> uuid = uuid_of(device);
      found.push_back(uuid.ok() ? uuid.value() : DeviceUuid{});
    }
    return found;
  }();
  return devices;
}

std::optional<int> number_of(const DeviceUuid& uuid) {
  const auto found = std::ranges::find(visible_devices(), uuid);
  if (found == visible_devices().end()) return std::nullopt;
  return static_cast<int>(found - visible_devices().begin());
}

// "GPU-5a3c…", as NVML and nvidia-smi write it.
std::string text_of(const DeviceUuid& uuid) {
  std::string text = to_hex(uuid);
  for (const size_t dash : {20, 16, 12, 8}) text.insert(dash, "-");
  return "GPU-" + text;
}

// The three functions of NVML that are needed. Its header is not part of the CUDA wheels. All return 0 on success.
class Nvml {
 public:
  static const Nvml& get() {
    static const Nvml loaded;
    return loaded;
  }

  Result<bool> are_linked(const DeviceUuid& device, const DeviceUuid& peer) const {
    constexpr int kNvlink = 2;  // NVML_P2P_CAPS_INDEX_NVLINK
    void *first = nullptr, *second = nullptr;
    int status = -1;
    if (!is_usable_ || by_uuid_(text_of(device).c_str(), &first) != 0 ||
        by_uuid_(text_of(peer).c_str(), &second) != 0 || p2p_status_(first, second, kNvlink, &status) != 0) {
      return Status(ErrorCode::kInternal,
                    "NVML (libnvidia-ml.so.1) does not know how the GPUs are connected; make "
                    "both visible to all ranks (CUDA_VISIBLE_DEVICES), or add the driver's "
                    "utilities to the container");
    }
    return status == 0;
  }

 private:
  Nvml() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    int (*initialize)() = nullptr;
    is_usable_ = find(library, "nvmlInit_v2", initialize) && find(library, "nvmlDeviceGetHandleByUUID", by_uuid_) &&
                 find(library, "nvmlDeviceGetP2PStatus", p2p_status_) && initialize() == 0;
  }

  template <typename Function>
  static bool find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
  }

  bool is_usable_ = false;
  int (*by_uuid_)(const char* uuid, void** device) = nullptr;
  int (*p2p_status_)(void* device, void* peer, int capability, int* status) = nullptr;
};

Result<bool> are_linked(const DeviceUuid& device, const DeviceUuid& peer) {
  const std::optional<int> first = number_of(device), second = number_of(peer);
  if (!first || !second) return Nvml::get().are_linked(device, peer);
  int has_atomics = 0;  // over NVLink alone
  AXON_CUDA_TRY(cudaDeviceGetP2PAttribute(&has_atomics, cudaDevP2PAttrNativeAtomicSupported, *first, *second));
  return has_atomics != 0;
}

}  // namespace

Status require_nvlink(const DeviceUuid& device, const DeviceUuid& peer) {
  if (device == peer) return Status();
  Result<bool> linked = are_linked(device, peer);
  if (!linked.ok()) return std::move(linked.status());
  if (linked.value()) return Status();
  return {ErrorCode::kInvalidArgument, "NVLink does not connect " + text_of(device) + " and " + text_of(peer)};
}

}  // namespace axon::cuda
