// How many forks lie between this process and the one that loaded this code: what was noted in a parent tells, in a
// child, that it is the parent's. A load, where getpid() would be a system call.
#pragma once

#include <cstdint>

namespace axon {

uint32_t num_forks() noexcept;

}  // namespace axon
