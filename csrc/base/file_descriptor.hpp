// A file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace axon {

class FileDescriptor {
 public:
  explicit FileDescriptor(int value = -1) noexcept : value_(value) {}
  FileDescriptor(FileDescriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~FileDescriptor() {
    if (valid()) ::close(value_);
  }

  int get() const noexcept { return value_; }
  bool valid() const noexcept { return value_ >= 0; }

 private:
  int value_;
};

}  // namespace axon
