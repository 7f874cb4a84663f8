// Numbers used once.
#pragma once

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <system_error>

namespace axon {

using Nonce = std::array<std::byte, 32>;

// From the kernel's random source. Throws std::system_error if that fails.
inline Nonce random_nonce() {
  Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  return nonce;
}

}  // namespace axon
