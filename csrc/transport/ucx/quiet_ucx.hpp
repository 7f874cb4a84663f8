// Silences UCX's warnings during its lifetime, while transfers are in flight at shutdown. After an abort, or when a
// peer was killed, UCX warns of every remaining request, a page of lines without new information. If UCX_LOG_LEVEL is
// more verbose than its default, all warnings are still printed. The level is global to the process.
//
//   const QuietUcx quiet;
//   ucx->ucp_worker_destroy(worker);
#pragma once

#include <array>
#include <string_view>

#include "transport/ucx/ucx_library.hpp"

namespace axon::transport {

class QuietUcx {
 public:
  QuietUcx() noexcept {
    std::array<char, 32> level{};
    const bool known = ucx->ucs_global_opts_get_value(kName, level.data(), level.size()) == UCS_OK;
    if (known && std::string_view(level.data()) == kDefault) {
      silenced_ = ucx->ucs_global_opts_set_value(kName, "ERROR") == UCS_OK;
    }
  }
  ~QuietUcx() {
    if (silenced_) ucx->ucs_global_opts_set_value(kName, kDefault);
  }
  QuietUcx(const QuietUcx&) = delete;
  QuietUcx& operator=(const QuietUcx&) = delete;

 private:
  static constexpr const char* kName = "LOG_LEVEL";
  static constexpr const char* kDefault = "WARN";
  bool silenced_ = false;
};

}  // namespace axon::transport
