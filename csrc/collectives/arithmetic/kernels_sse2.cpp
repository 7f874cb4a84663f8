#define AXON_VECTOR_BYTES 16
#include "collectives/arithmetic/kernel_templates.hpp"

namespace axon::arithmetic {

constinit const KernelTable kSse2Kernels = make_table("sse2");

}  // namespace axon::arithmetic
