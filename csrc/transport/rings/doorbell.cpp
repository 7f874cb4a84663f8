#include "transport/rings/doorbell.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/resources.hpp"

namespace axon::transport {

static Status failed(const std::string& call) {
  return out_of(call, errno);
}

// The owner holds the pipe open for writing, too, so that a read never finds its end.
Result<RingDoorbell> RingDoorbell::make(uint64_t key) {
  Result<SharedPages> page = SharedPages::make(sizeof(DoorbellPage));
  if (!page.ok()) return std::move(page.status());
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return failed("pipe2");
  FileDescriptor read_end(ends[0]);
  const FileDescriptor write_end(ends[1]);
  const std::string path = "/proc/self/fd/" + std::to_string(read_end.get());
  FileDescriptor pipe(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!pipe.valid()) return failed("open of " + path);
  RingDoorbell doorbell(key, std::move(page).value(), std::move(pipe));
  doorbell.shared().key = key;
  return doorbell;
}

bool RingDoorbell::read_more() noexcept {
  std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
  end_ -= std::exchange(begin_, 0);
  const ssize_t num_read = read(pipe_.get(), bytes_.data() + end_, bytes_.size() - end_);
  if (num_read <= 0) return false;
  end_ += static_cast<size_t>(num_read);
  return true;
}

bool RingDoorbell::next(RingCall& call, bool& finds_foreign) noexcept {
  const uint32_t num_calls = shared().num_calls.load(std::memory_order_acquire);
  for (;;) {
    for (; end_ - begin_ >= sizeof call; ++begin_) {
      std::memcpy(&call, bytes_.data() + begin_, sizeof call);
      if (call.key != key_) {
        finds_foreign = true;
        continue;
      }
      begin_ += sizeof call;
      return true;
    }
    if (read_more()) continue;
    finds_foreign |= begin_ != end_;  // an incomplete call at the end is foreign
    begin_ = end_ = 0;
    num_calls_seen_ = num_calls;
    return false;
  }
}

void RingDoorbell::wake() noexcept {
  const RingCall wake{.key = key_, .caller = {}};
  [[maybe_unused]] const ssize_t written = write(pipe_.get(), &wake, sizeof wake);  // a full pipe is readable already
}

void RingDoorbell::refuse(uint64_t number) noexcept {
  DoorbellPage& page = shared();
  const uint32_t num_refusals = page.num_refusals.load(std::memory_order_relaxed) + 1;
  page.refusals[num_refusals % DoorbellPage::kNumRefusals].store(number, std::memory_order_relaxed);
  page.num_refusals.store(num_refusals, std::memory_order_release);
}

// Opened for reading, too: a write into a pipe without a reader would raise SIGPIPE, which ends the process.
Result<WakeUpPipe> WakeUpPipe::open(const RingAddress& address) {
  Result<SharedPages> page = SharedPages::open(address.pid, address.page, sizeof(DoorbellPage));
  if (!page.ok()) return std::move(page.status());
  const std::string path = "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.pipe);
  FileDescriptor pipe(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!pipe.valid()) return failed("open of " + path);
  struct stat found{};
  WakeUpPipe wake_up(std::move(page).value(), std::move(pipe));
  if (fstat(wake_up.pipe_.get(), &found) != 0 || !S_ISFIFO(found.st_mode) || wake_up.shared().key != address.key) {
    return Status(ErrorCode::kPeerLost,
                  "process " + std::to_string(address.pid) + " is not the one that sent this address");
  }
  wake_up.num_refusals_seen_ = wake_up.shared().num_refusals.load(std::memory_order_acquire);
  return wake_up;
}

bool WakeUpPipe::call(const RingCall& call) noexcept {
  const ssize_t num_written = write(pipe_.get(), &call, sizeof call);
  if (call.kind != RingCall::Kind::kWake) shared().num_calls.fetch_add(1, std::memory_order_release);
  return num_written == static_cast<ssize_t>(sizeof call);
}

WakeUpPipe::Refused WakeUpPipe::has_refused(uint64_t number) noexcept {
  DoorbellPage& page = shared();
  const uint32_t num_refusals = page.num_refusals.load(std::memory_order_acquire);
  const uint32_t num_new = num_refusals - std::exchange(num_refusals_seen_, num_refusals);
  if (num_new == 0) return Refused::kNo;
  for (const std::atomic<uint64_t>& refused : page.refusals) {
    const uint64_t which = refused.load(std::memory_order_relaxed);
    if (which == number) return Refused::kYes;
    if (which == (number | RingCall::kForWant)) return Refused::kForWant;
  }
  return num_new < DoorbellPage::kNumRefusals ? Refused::kNo : Refused::kMaybe;
}

}  // namespace axon::transport
