#include "base/random.hpp"

#include <sys/random.h>

#include <cerrno>
#include <system_error>

namespace axon {

uint64_t random_number() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return number;
}

}  // namespace axon
