// A page of host memory that processes share. One process creates it, and the others fetch its descriptor.
//
//   Result<SharedPage> mine = SharedPage::create();         // zero-initialised
//   Result<SharedPage> theirs = SharedPage::map(fetched);   // the page of a peer
//
// The page exists as long as a process has it mapped, whether or not its creator still runs.
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
  // The creator's descriptor.
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
