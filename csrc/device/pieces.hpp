// How a message is cut into pieces that are pushed one behind the other: the same at both of its ends, and on host and
// device, by its length alone.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define AXON_HOST_AND_DEVICE __host__ __device__
#else
#define AXON_HOST_AND_DEVICE
#endif

namespace axon {

inline constexpr uint32_t kMostPieces = 32;  // of a message of up to 512 MiB, if the shortest are of 256 bytes or more

struct Piece {
  uint64_t begin = 0;  // in the message
  uint64_t num_bytes = 0;
};

// Each piece costs some microseconds besides its bytes, so there are few; but what has come is used only when the last
// byte of its piece is there, so towards the end they get shorter. Of 64 MiB, for one: seven of 8 MiB, 4, and 4.
struct Cut {
  uint64_t num_bytes = 0;
  uint64_t longest = 1;
  uint64_t shortest = 1;  // but for the last one, which may have any length up to twice that

  AXON_HOST_AND_DEVICE static constexpr Cut of(uint64_t num_bytes, uint64_t shortest) {
    constexpr uint64_t kPreferredPieces = 8;
    const uint64_t wished = whole_lines(num_bytes / kPreferredPieces);
    return {num_bytes, wished < shortest ? shortest : wished, shortest};
  }

  // Empty behind the last one.
  AXON_HOST_AND_DEVICE constexpr Piece piece(uint32_t number) const {
    Piece piece{0, next(num_bytes)};
    for (uint32_t i = 0; i < number; ++i) {
      piece.begin += piece.num_bytes;
      piece.num_bytes = next(num_bytes - piece.begin);
    }
    return piece;
  }

  AXON_HOST_AND_DEVICE constexpr uint32_t num_pieces() const {
    uint32_t number = 0;
    for (uint64_t rest = num_bytes; rest != 0; rest -= next(rest)) ++number;
    return number;
  }

 private:
  AXON_HOST_AND_DEVICE static constexpr uint64_t whole_lines(uint64_t num_bytes) {
    constexpr uint64_t kLine = 128;
    return (num_bytes + kLine - 1) / kLine * kLine;
  }
  AXON_HOST_AND_DEVICE constexpr uint64_t next(uint64_t rest) const {
    if (rest >= 2 * longest) return longest;
    return rest > 2 * shortest ? whole_lines(rest / 2) : rest;
  }
};

}  // namespace axon
