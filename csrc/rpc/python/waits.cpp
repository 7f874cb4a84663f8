#include "rpc/python/waits.hpp"

#include <algorithm>
#include <string>

namespace axon::rpc_python {

std::chrono::duration<double> timeout_of(double seconds) {
  constexpr double kLongest = 365 * 24 * 3600.0;
  if (!(seconds >= 0)) {
    throw pybind11::value_error("timeout is " + std::to_string(seconds) + " s; allowed: 0 or more");
  }
  return std::chrono::duration<double>(std::min(seconds, kLongest));
}

sync::Clock::time_point deadline_in(double seconds) {
  return sync::Clock::now() + std::chrono::duration_cast<sync::Clock::duration>(timeout_of(seconds));
}

}  // namespace axon::rpc_python
