// The part of cuBLASLt that we call. It is not linked: torch has loaded it into the process, or the loader finds it.
//
//   Result<const BlasLt*> blas = load_blas_lt();
//   AXON_BLAS_TRY(blas.value(), create(&handle));   // in a function that returns Status or Result<T>
//
// It is declared here rather than included, since its header comes with half a gigabyte of kernels. All declarations
// are the same in versions 12 and 13: https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api. Thread-safe.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/status.hpp"

namespace axon::matmul {

struct BlasLt {
  // Created and destroyed by the library.
  using Handle = struct HandleTag*;
  using Description = struct DescriptionTag*;
  using Layout = struct LayoutTag*;
  using Preference = struct PreferenceTag*;
  struct Deleter {
    void operator()(Description description) const noexcept;
    void operator()(Layout layout) const noexcept;
    void operator()(Preference preference) const noexcept;
  };
  using OwnDescription = std::unique_ptr<DescriptionTag, Deleter>;
  using OwnLayout = std::unique_ptr<LayoutTag, Deleter>;
  using OwnPreference = std::unique_ptr<PreferenceTag, Deleter>;

  struct Algorithm {
    uint64_t data[8];
  };
  struct Candidate {
    Algorithm algorithm;
    size_t workspace_bytes;
    int status;
    float num_waves;  // of the blocks that the device runs at a time
    int reserved[4];
  };

  static constexpr int kFloat32 = 0, kFloat16 = 2, kBFloat16 = 14;  // cudaDataType
  static constexpr int kComputeInFloat32 = 68;
  static constexpr int kTransposeA = 3, kEpilogue = 7, kBiasPointer = 8;  // of a description
  static constexpr int kMostWorkspaceBytes = 1, kAlignmentOfA = 5;        // of a preference; B, C, D
  static constexpr int kTile = 1, kNumSplits = 2;                         // of an algorithm
  static constexpr int32_t kTransposed = 1, kAddsBias = 4;                // values

  int (*create)(Handle*);
  const char* (*text_of)(int status);
  int (*create_description)(Description*, int compute_type, int scale_type);
  int (*set_of_description)(Description, int attribute, const void* value, size_t num_bytes);
  int (*destroy_description)(Description);
  int (*create_layout)(Layout*, int type, uint64_t num_rows, uint64_t num_columns, int64_t leading_dimension);
  int (*destroy_layout)(Layout);
  int (*create_preference)(Preference*);
  int (*set_of_preference)(Preference, int attribute, const void* value, size_t num_bytes);
  int (*destroy_preference)(Preference);
  int (*find_candidates)(Handle, Description, Layout a, Layout b, Layout c, Layout d, Preference, int most, Candidate*,
                         int* num_found);
  int (*get_of_algorithm)(const Algorithm*, int attribute, void* value, size_t num_bytes, size_t* num_written);
  int (*multiply)(Handle, Description, const void* alpha, const void* a, Layout, const void* b, Layout,
                  const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*, void* workspace,
                  size_t workspace_bytes, cudaStream_t);
};

// Loaded once; valid for the life of the process.
Result<const BlasLt*> load_blas_lt();

Status blas_failure(const BlasLt& blas, int status, const char* call);

}  // namespace axon::matmul

#define AXON_BLAS_TRY(blas, call)                                            \
  do {                                                                       \
    if (int axon_blas_status = (blas)->call; axon_blas_status != 0)          \
      return ::axon::matmul::blas_failure(*(blas), axon_blas_status, #call); \
  } while (false)
