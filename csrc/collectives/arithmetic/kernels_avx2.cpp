// Standard headers first: the whole program shares their inline functions, which must run on any processor.
#include <immintrin.h>

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "collectives/arithmetic/kernels.hpp"

#pragma GCC target("avx2,f16c")

#define AXON_VECTOR_BYTES 32
#include "collectives/arithmetic/kernel_templates.hpp"

namespace axon::arithmetic {

constinit const KernelTable kAvx2Kernels = make_table("avx2");

}  // namespace axon::arithmetic
