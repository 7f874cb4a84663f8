#include "base/tcp_progress.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace axon {

std::optional<TcpProgress> tcp_progress(const FileDescriptor& socket) noexcept {
  tcp_info info{};
  socklen_t num_bytes = sizeof info;
  if (getsockopt(socket.get(), IPPROTO_TCP, TCP_INFO, &info, &num_bytes) != 0) return std::nullopt;
  if (num_bytes < offsetof(tcp_info, tcpi_busy_time) + sizeof info.tcpi_busy_time) return std::nullopt;
  return TcpProgress{.num_acknowledged = info.tcpi_bytes_acked,
                     .sending = std::chrono::microseconds(info.tcpi_busy_time)};
}

}  // namespace axon
