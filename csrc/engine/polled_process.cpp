#include "engine/polled_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "base/file_descriptor.hpp"

namespace axon::engine {

namespace {

struct Facts {
  enum class State : uint8_t { kLives, kEnded, kUnknown };
  State state = State::kUnknown;
  uint64_t start_time = 0;
};

// proc_pid_stat(5): the name, in parentheses, may contain any text. The state follows it, and the start time 18 numbers
// later.
Facts parse(const char* text) noexcept {
  const char* const rest = std::strrchr(text, ')');
  char state = 0;
  unsigned long long start_time = 0;
  static constexpr const char* kFields =
      ") %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu";
  if (rest == nullptr || std::sscanf(rest, kFields, &state, &start_time) != 2) return {};
  const bool has_ended = state == 'Z' || state == 'X';
  return {.state = has_ended ? Facts::State::kEnded : Facts::State::kLives, .start_time = start_time};
}

Facts look_at(int32_t pid) noexcept {
  std::array<char, 32> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/stat", pid);
  const FileDescriptor file(open(path.data(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return {.state = errno == ENOENT ? Facts::State::kEnded : Facts::State::kUnknown};
  std::array<char, 1024> text{};
  const ssize_t num_read = read(file.get(), text.data(), text.size() - 1);
  if (num_read < 0) return {.state = errno == ESRCH ? Facts::State::kEnded : Facts::State::kUnknown};
  return parse(text.data());
}

}  // namespace

Result<PolledProcess> PolledProcess::find(int32_t pid, transport::PeerId peer) {
  const Facts facts = look_at(pid);
  if (facts.state == Facts::State::kLives) return PolledProcess(pid, peer, facts.start_time);
  const bool exists = kill(pid, 0) == 0 || errno == EPERM;
  const std::string process = "process " + std::to_string(pid);
  if (!exists || facts.start_time != 0) return Status(ErrorCode::kPeerLost, process + " has ended");
  return Status(ErrorCode::kTransport, process + " is not visible in /proc");
}

bool PolledProcess::has_ended() const noexcept {
  const Facts facts = look_at(pid_);
  if (facts.state == Facts::State::kUnknown) return false;  // for example because no file descriptor was left
  return facts.state == Facts::State::kEnded || facts.start_time != start_time_;
}

}  // namespace axon::engine
