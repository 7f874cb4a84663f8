// Every AXON_* environment variable, in one table. Only this module calls getenv. Any thread.
//
//   AXON_TRY(config::check_environment());         // once, at start: fails on bad values, warns of unknown names
//   const std::string rules = config::text("AXON_ALGO");
//
// AXON_UCX_* (except AXON_UCX_ROOT) belong to UCX: AXON_UCX_TLS sets UCX_TLS for this engine.
// `python -m torch_axon.config` prints the table; docs/environment.md is generated from it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.hpp"

namespace axon::config {

enum class ReadBy : uint8_t { kImport, kEngine, kRuntime, kBuild, kTests };

struct Setting {
  const char* name;
  ReadBy read_by;
  const char* fallback;
  const char* allowed;  // in words
  const char* description;
  // Null: any text is accepted here; the code that reads the setting reports errors.
  bool (*accepts)(std::string_view value) noexcept;
  bool is_secret = false;  // the value must never be shown
};

std::span<const Setting> settings() noexcept;

// Returns the value in the environment, else the table's fallback. The name must be in the table.
std::string text(std::string_view name);
bool is_set(std::string_view name);
// Returns the value if it is a number, and nothing if it is "auto".
std::optional<size_t> number(std::string_view name);
// Returns whether AXON_TRANSPORTS names this transport.
bool has_transport(std::string_view transport);

// Fails on the first value that its setting does not accept; logs unknown names, with the nearest known one.
Status check_environment();

// Returns AXON_UCX_TLS=tcp of the environment as {"TLS", "tcp"}, and so on.
std::vector<std::pair<std::string, std::string>> ucx_settings();

// Returns the known setting that was probably meant; null if no name is near.
const Setting* nearest(std::string_view name) noexcept;

// Returns the AXON_* names of the environment that are neither in the table nor UCX's.
std::vector<std::string> unknown_names();

}  // namespace axon::config
