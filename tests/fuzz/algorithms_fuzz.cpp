// Fuzzes AXON_ALGO: an accepted value overrides the operations that it names, and printing it gives a value that parses
// to the same.
#include <string>

#include "collectives/selector.hpp"
#include "fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace axon;
  using namespace axon::collectives;
  const std::string text(data, data + num_bytes);
  axon::Result<AlgorithmOverrides> parsed = AlgorithmOverrides::parse(text);
  if (!parsed.ok()) {
    CHECK(parsed.status().code() == ErrorCode::kInvalidArgument);
    return 0;
  }
  std::string rewritten;
  for (const AlgorithmRow& row : kAlgorithms) {
    if (parsed.value().of(row.kind) != &row) continue;
    CHECK(text.find(row.name) != std::string::npos && text.find(name_of(row.kind)) != std::string::npos);
    rewritten += std::string(name_of(row.kind)) + "=" + std::string(row.name) + ";";
  }
  for (const KernelRow& row : kKernels) {
    if (parsed.value().kernel_of(row.kind) != row.kernel) continue;
    CHECK(text.find(name_of(row.kernel)) != std::string::npos && text.find(name_of(row.kind)) != std::string::npos);
    rewritten += std::string(name_of(row.kind)) + "=" + name_of(row.kernel) + ";";
  }
  axon::Result<AlgorithmOverrides> again = AlgorithmOverrides::parse(rewritten);
  CHECK(again.ok());
  CHECK(again.value().kernels() == parsed.value().kernels());
  for (const AlgorithmRow& row : kAlgorithms) {
    CHECK(again.value().of(row.kind) == parsed.value().of(row.kind));
    CHECK(select(row.kind, {4, 1}, num_bytes, parsed.value()).kind == row.kind);
  }
  return 0;
}
