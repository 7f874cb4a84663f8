// Numbers that nobody guesses.
#pragma once

#include <cstdint>

namespace axon {

// From the kernel's source of randomness. Throws std::system_error where that is closed to this process.
uint64_t random_number();

}  // namespace axon
