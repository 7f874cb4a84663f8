// Into what pieces a product's rows are cut. Cutting changes which kernel cuBLAS takes, and how many multiprocessors
// its last tiles leave idle: by some percent either way, more than the communication that a product hides.
#pragma once

#include "c10d/fused/products.hpp"

namespace axon {

// What of these rows is to be multiplied at once (Weight::rows_at_once), for others with the same weight, too.
//
// Chosen by measurement when the shape is first seen: the product is done on the operands themselves, in each way
// several times, on the current stream, which the host then waits for. A guess instead in a capture, where torch is to
// be deterministic, and beyond the first shapes of a process.
int64_t fastest_rows_at_once(const Rows& x, const Weight& weight, const at::Tensor& output);

}  // namespace axon
