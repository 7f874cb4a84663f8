// Runs a fuzz target once on each file of a folder, so that the corpus is a test with any compiler.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "fuzz.hpp"

int main(int argc, char** argv) {
  CHECK(argc == 2);
  size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    ++num_files;
  }
  std::printf("%zu inputs\n", num_files);
  return num_files == 0 ? 1 : 0;
}
