#include "fused/matmul/blas_lt.hpp"

#include <dlfcn.h>

#include <string>
#include <utility>

namespace axon::matmul {

namespace {

// Opens a version with this interface, preferably the one that is already loaded.
void* open_library() noexcept {
  static constexpr const char* kNames[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
  for (const int mode : {RTLD_NOW | RTLD_NOLOAD, RTLD_NOW}) {
    for (const char* name : kNames) {
      if (void* const library = dlopen(name, mode)) return library;
    }
  }
  return nullptr;
}

template <typename Function>
Status find(void* library, const char* name, Function& function) {
  void* const address = dlsym(library, name);
  if (address == nullptr) return {ErrorCode::kInternal, std::string("the loaded cuBLASLt does not define ") + name};
  function = reinterpret_cast<Function>(address);
  return Status();
}

Result<BlasLt> find_all() {
  void* const library = open_library();
  if (library == nullptr) {
    return Status(ErrorCode::kInternal, "neither libcublasLt.so.13 nor libcublasLt.so.12 is loaded or can be found");
  }
  BlasLt blas{};
  AXON_TRY(find(library, "cublasLtCreate", blas.create));
  AXON_TRY(find(library, "cublasLtGetStatusString", blas.text_of));
  AXON_TRY(find(library, "cublasLtMatmulDescCreate", blas.create_description));
  AXON_TRY(find(library, "cublasLtMatmulDescSetAttribute", blas.set_of_description));
  AXON_TRY(find(library, "cublasLtMatmulDescDestroy", blas.destroy_description));
  AXON_TRY(find(library, "cublasLtMatrixLayoutCreate", blas.create_layout));
  AXON_TRY(find(library, "cublasLtMatrixLayoutDestroy", blas.destroy_layout));
  AXON_TRY(find(library, "cublasLtMatmulPreferenceCreate", blas.create_preference));
  AXON_TRY(find(library, "cublasLtMatmulPreferenceSetAttribute", blas.set_of_preference));
  AXON_TRY(find(library, "cublasLtMatmulPreferenceDestroy", blas.destroy_preference));
  AXON_TRY(find(library, "cublasLtMatmulAlgoGetHeuristic", blas.find_candidates));
  AXON_TRY(find(library, "cublasLtMatmulAlgoConfigGetAttribute", blas.get_of_algorithm));
  AXON_TRY(find(library, "cublasLtMatmul", blas.multiply));
  return blas;
}

}  // namespace

Result<const BlasLt*> load_blas_lt() {
  static Result<BlasLt> loaded = find_all();
  if (!loaded.ok()) return loaded.status().clone();
  return &std::as_const(loaded).value();
}

// The library created this object, so the library is loaded.
void BlasLt::Deleter::operator()(Description description) const noexcept {
  (void)load_blas_lt().value()->destroy_description(description);
}
void BlasLt::Deleter::operator()(Layout layout) const noexcept {
  (void)load_blas_lt().value()->destroy_layout(layout);
}
void BlasLt::Deleter::operator()(Preference preference) const noexcept {
  (void)load_blas_lt().value()->destroy_preference(preference);
}

Status blas_failure(const BlasLt& blas, int status, const char* call) {
  return {ErrorCode::kInternal,
          "cuBLASLt, " + std::string(call) + ": " + blas.text_of(status) + " (" + std::to_string(status) + ")"};
}

}  // namespace axon::matmul
