// Fuzzes the values and names of environment variables.
#include <algorithm>
#include <string>

#include "base/config.hpp"
#include "base/log.hpp"
#include "fuzz.hpp"

static void check_name(const std::string& name) {
  using namespace axon;
  if (name.size() > 20) return;  // computing the distance of two names takes the product of their lengths
  const config::Setting* nearest = config::nearest(name);
  for (const config::Setting& known : config::settings()) {
    if (name == known.name) CHECK(nearest == &known);
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace axon;
  Input input(data, num_bytes);
  const auto settings = config::settings();
  const size_t chosen = input.take<uint8_t>() % (settings.size() + 1);
  const std::string value(input.rest().begin(), input.rest().end());
  if (chosen == settings.size()) {
    check_name(value);
    return 0;
  }
  const config::Setting& setting = settings[chosen];
  if (setting.accepts != nullptr && setting.accepts({value.data(), value.size()})) {
    CHECK(!value.empty());
    CHECK(std::ranges::all_of(value, [](unsigned char character) { return character > ' ' && character < 127; }));
  }
  return 0;
}
