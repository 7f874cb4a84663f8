// Fuzzes messages of any content and order for a rank that enters collectives, and posts and cancels receives. Memory
// is written only where a matching receive waits. No large payload is forgotten or taken twice. Messages from
// non-members are refused.
#include "rank.hpp"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("AXON_LOG", "error", 1);  // refused messages cause warnings
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  axon::Input input(data, num_bytes);
  axon::transport::Rank rank(input);
  for (int i = 0; i < axon::transport::kMostActions && !input.is_over(); ++i) rank.act();
  return 0;
}
