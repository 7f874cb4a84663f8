#include "base/host_id.hpp"

#include <sys/stat.h>

#include <fstream>
#include <string>

namespace axon {

namespace {

uint64_t mix(uint64_t hash, uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

uint64_t inode_of(const char* path) noexcept {
  struct stat facts{};
  return stat(path, &facts) == 0 ? facts.st_ino : 0;
}

}  // namespace

uint64_t this_host() {
  std::string boot_id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot_id;
  uint64_t hash = 0;
  for (const char character : boot_id) hash = mix(hash, static_cast<uint8_t>(character));
  for (const char* space : {"/proc/self/ns/pid", "/proc/self/ns/net", "/proc/self/ns/ipc"}) {
    hash = mix(hash, inode_of(space));
  }
  return hash;
}

}  // namespace axon
