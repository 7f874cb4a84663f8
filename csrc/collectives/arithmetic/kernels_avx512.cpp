// Standard headers first: the whole program shares their inline functions, which must run on any processor.
#include <immintrin.h>

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "collectives/arithmetic/kernels.hpp"

#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")

#define AXON_VECTOR_BYTES 64
#include "collectives/arithmetic/kernel_templates.hpp"

namespace axon::arithmetic {

constinit const KernelTable kAvx512Kernels = make_table("avx512");

}  // namespace axon::arithmetic
