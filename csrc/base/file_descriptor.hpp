// A file descriptor that closes itself. Forked children can be kept from inheriting it (base/inheritance.hpp).
//
//   FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
//   if (!socket.valid()) return out_of("socket", errno);
#pragma once

#include <unistd.h>

#include <utility>

#include "base/inheritance.hpp"

namespace axon {

class FileDescriptor {
 public:
  explicit FileDescriptor(int value = -1) noexcept : value_(value) {}
  FileDescriptor(FileDescriptor&& other) noexcept
      : value_(std::exchange(other.value_, -1)), withheld_(std::move(other.withheld_)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    std::swap(withheld_, other.withheld_);
    return *this;
  }
  ~FileDescriptor() {
    if (withheld_.is_active()) {
      withheld_.close_descriptor();
    } else if (valid()) {
      ::close(value_);
    }
  }

  // From here on forked children get no copy of it. For connections whose hang-up tells a peer that this process ended.
  void withhold_from_forks() { withheld_ = WithheldFromForks(value_, WithheldFromForks::What::kItself); }

  int get() const noexcept { return value_; }
  bool valid() const noexcept { return value_ >= 0; }

 private:
  int value_;
  WithheldFromForks withheld_;
};

}  // namespace axon
