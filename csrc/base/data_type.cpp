#include "base/data_type.hpp"

#include <array>

namespace axon {

static constexpr std::array<const char*, 16> kTypes{
    "byte",  "bool",   "int8",    "uint8",    "int16",   "uint16",  "int32",     "uint32",
    "int64", "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128"};

static constexpr std::array<const char*, 10> kReductions{"none", "SUM",  "AVG", "PRODUCT", "MIN",
                                                         "MAX",  "BAND", "BOR", "BXOR",    "PREMUL_SUM"};

// Values may come from the wire, hence the bound checks.
const char* name_of(DataType type) noexcept {
  const auto index = static_cast<size_t>(type);
  return index < kTypes.size() ? kTypes[index] : "unknown type";
}

const char* name_of(Reduction reduction) noexcept {
  const auto index = static_cast<size_t>(reduction);
  return index < kReductions.size() ? kReductions[index] : "unknown reduction";
}

}  // namespace axon
