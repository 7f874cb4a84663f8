#include "base/data_type.hpp"

#include <array>

namespace axon {

struct TypeFacts {
  uint8_t num_bytes;
  const char* name;
};

static constexpr std::array<TypeFacts, 16> kTypes{{{1, "byte"},
                                                   {1, "bool"},
                                                   {1, "int8"},
                                                   {1, "uint8"},
                                                   {2, "int16"},
                                                   {2, "uint16"},
                                                   {4, "int32"},
                                                   {4, "uint32"},
                                                   {8, "int64"},
                                                   {8, "uint64"},
                                                   {2, "float16"},
                                                   {2, "bfloat16"},
                                                   {4, "float32"},
                                                   {8, "float64"},
                                                   {8, "complex64"},
                                                   {16, "complex128"}}};

static constexpr std::array<const char*, 10> kReductions{"none", "SUM",  "AVG", "PRODUCT", "MIN",
                                                         "MAX",  "BAND", "BOR", "BXOR",    "PREMUL_SUM"};

size_t size_of(DataType type) noexcept {
  const auto index = static_cast<size_t>(type);
  return index < kTypes.size() ? kTypes[index].num_bytes : 1;
}

// Both take values that may come from the wire, hence the bound checks.
const char* name_of(DataType type) noexcept {
  const auto index = static_cast<size_t>(type);
  return index < kTypes.size() ? kTypes[index].name : "unknown type";
}

const char* name_of(Reduction reduction) noexcept {
  const auto index = static_cast<size_t>(reduction);
  return index < kReductions.size() ? kReductions[index] : "unknown reduction";
}

}  // namespace axon
