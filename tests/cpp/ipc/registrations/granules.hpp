// Memory like torch's expandable segments: a range of addresses in which granules are mapped and unmapped.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <vector>

namespace axon::testing {

class Granules {
 public:
  static constexpr size_t kBytes = size_t{2} << 20;  // of one granule, as for small tensors

  Granules(int device, size_t count);
  ~Granules();
  Granules(const Granules&) = delete;
  Granules& operator=(const Granules&) = delete;

  std::byte* at(size_t index) const { return reinterpret_cast<std::byte*>(address_of(index)); }

  void map(size_t index);
  void unmap(size_t index);

 private:
  CUdeviceptr address_of(size_t index) const { return base_ + index * kBytes; }

  const int device_;
  CUdeviceptr base_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_;  // 0: not mapped
};

}  // namespace axon::testing
