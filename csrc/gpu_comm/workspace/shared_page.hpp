// A page of the host's memory that processes share: made by one, whose descriptor the others fetch.
//
//   Result<SharedPage> mine = SharedPage::create();                     // zeros
//   Result<SharedPage> theirs = SharedPage::map(fetched);            // of a peer
//
// It stays as long as somebody has it mapped, whether or not its maker still runs.
#pragma once

#include <cstddef>
#include <memory>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace axon::gpu_comm {

class SharedPage {
 public:
  static constexpr size_t kNumBytes = 4096;

  static Result<SharedPage> create();
  static Result<SharedPage> map(const FileDescriptor& memory);

  std::byte* data() const noexcept { return data_.get(); }
  // Its maker's.
  const FileDescriptor& descriptor() const noexcept { return memory_; }

 private:
  struct Unmapper {
    void operator()(std::byte* data) const noexcept;
  };
  explicit SharedPage(std::byte* data) noexcept : data_(data) {}

  FileDescriptor memory_;
  std::unique_ptr<std::byte, Unmapper> data_;
};

}  // namespace axon::gpu_comm
