// Random numbers that cannot be guessed.
#pragma once

#include <cstdint>

namespace axon {

// Reads the kernel's source of randomness. Throws std::system_error if this process has no access to it.
uint64_t random_number();

}  // namespace axon
