// Every AXON_* environment variable, in one table: the only place of the project that calls getenv.
//
//   AXON_TRY(config::check_environment());         // once, at start: fails on bad values, warns of unknown names
//   const std::string rules = config::text("AXON_ALGO");
//
// AXON_UCX_* (but AXON_UCX_ROOT) belong to UCX: AXON_UCX_TLS is its UCX_TLS for this engine.
// `python -m torch_axon.config` prints the table, docs/environment.md is made from it.
#pragma once

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
  // Null: any text will do here; whoever reads it says what is wrong with it.
  bool (*accepts)(std::string_view value) noexcept;
  bool is_secret = false;  // to be read, never to be shown
};

std::span<const Setting> settings() noexcept;

// The value in the environment, else the table's fallback. The name must be in the table.
std::string text(std::string_view name);
bool is_set(std::string_view name);
// Whether AXON_TRANSPORTS names this one.
bool has_transport(std::string_view transport);

// Fails on the first value that its setting does not accept; logs names that nobody knows, with the nearest known one.
Status check_environment();

// AXON_UCX_TLS=tcp of the environment as {"TLS", "tcp"}, and so on.
std::vector<std::pair<std::string, std::string>> ucx_settings();

// The known setting that was probably meant; null where none is near.
const Setting* nearest(std::string_view name) noexcept;

// AXON_* names of the environment that are neither in the table nor UCX's.
std::vector<std::string> unknown_names();

}  // namespace axon::config
