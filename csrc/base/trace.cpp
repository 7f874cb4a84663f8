#include "base/trace.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <system_error>

#include "base/config.hpp"
#include "base/file_descriptor.hpp"
#include "base/forks.hpp"

namespace axon::trace {

namespace {

// Some 20,000 events; 10 ms of small operations are a tenth of that. A thread that adds more waits for the file.
constexpr size_t kMostBuffered = size_t{4} << 20;

struct Writer {
  std::mutex file_mutex;  // guards these two; taken before the other mutex
  FileDescriptor file;
  std::string outgoing;
  std::mutex mutex;  // guards all other members
  std::string buffer;
  int rank = 0;
  uint32_t num_tracks = 0;
  // Both clocks at one moment, so that events of several hosts line up as well as their clocks agree.
  TimePoint steady_origin;
  std::chrono::system_clock::time_point system_origin;
};

Writer& writer() {
  static OnePerProcess<Writer> instance;
  return instance.get();
}

// The file belongs to the parent. A forked child that forms groups opens its own.
[[maybe_unused]] const int registered =
    pthread_atfork(nullptr, nullptr, [] { on.store(false, std::memory_order_relaxed); });

void append_quoted(std::string& text, std::string_view value) {
  text += '"';
  for (const char character : value) {
    if (character == '"' || character == '\\') {
      text += '\\';
      text += character;
    } else {
      text += static_cast<unsigned char>(character) < ' ' ? ' ' : character;
    }
  }
  text += '"';
}

void append_time(std::string& text, const Writer& writer, TimePoint at) {
  const auto since_1970 = writer.system_origin.time_since_epoch() + (at - writer.steady_origin);
  const auto num_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(since_1970).count();
  std::array<char, 32> digits{};
  std::snprintf(digits.data(), digits.size(), "%lld.%03lld", static_cast<long long>(num_ns / 1000),
                static_cast<long long>(num_ns % 1000));
  text += digits.data();
}

void append_head(std::string& text, const Writer& writer, char phase, std::string_view name, uint32_t track) {
  text += R"({"ph":")";
  text += phase;
  text += R"(","pid":)" + std::to_string(writer.rank) + R"(,"tid":)" + std::to_string(track) + R"(,"name":)";
  append_quoted(text, name);
}

// Appends a name for a process or a track.
void append_label(Writer& writer, std::string_view what, uint32_t track, std::string_view label) {
  append_head(writer.buffer, writer, 'M', what, track);
  writer.buffer += R"(,"args":{"name":)";
  append_quoted(writer.buffer, label);
  writer.buffer += "}},\n";
}

// A full disk ends the trace, not the job. Other threads may add events meanwhile.
void write_out(Writer& writer) noexcept {
  const std::lock_guard file_lock(writer.file_mutex);
  {
    const std::lock_guard lock(writer.mutex);
    std::swap(writer.buffer, writer.outgoing);
  }
  std::string_view rest = writer.outgoing;
  while (!rest.empty()) {
    const ssize_t num_written = ::write(writer.file.get(), rest.data(), rest.size());
    if (num_written < 0 && errno == EINTR) continue;
    if (num_written < 0) {
      on.store(false, std::memory_order_relaxed);
      break;
    }
    rest.remove_prefix(static_cast<size_t>(num_written));
  }
  writer.outgoing.clear();
}

// Inserts ".rank3" into "trace.json", which gives trace.rank3.json.
std::string with_part(std::string file, const std::string& part) {
  const size_t name = file.rfind('/') + 1;  // 0 where there is no folder
  const size_t ending = file.rfind('.');
  return file.insert(ending == std::string::npos || ending <= name ? file.size() : ending, part);
}

// Locks the file while the trace is written, and truncates it only then: it may belong to a rank that is running.
Result<FileDescriptor> open_file(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (file.valid() && flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return open_file(with_part(path, ".pid" + std::to_string(getpid())));
  }
  if (file.valid() && ftruncate(file.get(), 0) == 0) return file;
  return Status(ErrorCode::kInvalidArgument,
                "AXON_TRACE: '" + path + "' cannot be written: " + std::generic_category().message(errno));
}

}  // namespace

void Details::add_name(std::string_view name) {
  if (!text_.empty()) text_ += ',';
  append_quoted(text_, name);
  text_ += ':';
}

Details& Details::add(std::string_view name, std::string_view value) {
  add_name(name);
  append_quoted(text_, value);
  return *this;
}

Details& Details::add(std::string_view name, int64_t value) {
  add_name(name);
  text_ += std::to_string(value);
  return *this;
}

std::string file_of(std::string_view pattern, int rank) {
  std::string file(pattern);
  const std::string number = std::to_string(rank);
  if (const size_t at = file.find("%r"); at != std::string::npos) return file.replace(at, 2, number);
  return with_part(std::move(file), ".rank" + number);
}

Status open(int rank) {
  const std::string pattern = config::text("AXON_TRACE");
  Writer& to = writer();
  const std::scoped_lock lock(to.file_mutex, to.mutex);
  if (pattern.empty() || to.file.valid()) return Status();
  Result<FileDescriptor> file = open_file(file_of(pattern, rank));
  if (!file.ok()) return std::move(file.status());
  to.file = std::move(file).value();
  to.rank = rank;
  to.steady_origin = std::chrono::steady_clock::now();
  to.system_origin = std::chrono::system_clock::now();
  to.buffer = "[\n";
  append_label(to, "process_name", 0, "rank " + std::to_string(rank) + " (pid " + std::to_string(getpid()) + ")");
  on.store(true, std::memory_order_relaxed);
  return Status();
}

uint32_t add_track(std::string_view name) {
  Writer& to = writer();
  const std::lock_guard lock(to.mutex);
  append_label(to, "thread_name", ++to.num_tracks, "group " + std::string(name));
  return to.num_tracks;
}

void write(const Event& event) {
  Writer& to = writer();
  std::unique_lock lock(to.mutex);
  if (!is_on()) return;
  append_head(to.buffer, to, static_cast<char>(event.phase), event.name, event.track);
  to.buffer += R"(,"cat":"axon","id":)" + std::to_string(event.id) + R"(,"ts":)";
  append_time(to.buffer, to, event.at);
  to.buffer += R"(,"args":{)" + event.details.text() + "}},\n";
  const bool is_full = to.buffer.size() >= kMostBuffered;
  lock.unlock();
  if (is_full) write_out(to);
}

void flush() noexcept {
  if (is_on()) write_out(writer());
}

// The last event has no comma after it, so that the file is valid JSON.
void close() noexcept {
  Writer& to = writer();
  {
    const std::lock_guard lock(to.mutex);
    if (!is_on()) return;
    on.store(false, std::memory_order_relaxed);  // no event may follow the last one
    append_head(to.buffer, to, 'M', "end", 0);
    to.buffer += "}\n]\n";
  }
  write_out(to);
  const std::lock_guard lock(to.file_mutex);
  to.file = FileDescriptor();
}

}  // namespace axon::trace
