// NVTX passes its calls to this library if NVTX_INJECTION64_PATH names it, as it does with Nsight Systems' own.
#include <nvtx3/nvToolsExt.h>
#include <mutex>
#include <string>

static std::mutex mutex;
static std::string names;  // one line per range

static int push(const char* name) {
  const std::lock_guard lock(mutex);
  names.append(name).append("\n");
  return 0;
}

extern "C" const char* pushed_ranges() {
  return names.c_str();
}

extern "C" int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t table_of) {
  const auto* callbacks = static_cast<const NvtxExportTableCallbacks*>(table_of(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable functions = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &size)) return 0;
  *functions[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(push);
  return 1;
}
