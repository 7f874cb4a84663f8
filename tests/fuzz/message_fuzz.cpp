// Messages of any content in any order, for a rank that enters collectives, posts receives and gives them up: nothing
// is written but where a receive waits for exactly that, no large payload is forgotten or taken twice, and what is not
// from a member is refused.
#include "rank.hpp"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("AXON_LOG", "error", 1);  // what is refused is warned of
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  axon::Input input(data, num_bytes);
  axon::transport::Rank rank(input);
  for (int i = 0; i < axon::transport::kMostActions && !input.is_over(); ++i) rank.act();
  return 0;
}
