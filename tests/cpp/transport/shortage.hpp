// Uses up this process's file descriptors during its lifetime.
//
//   const Shortage shortage;
//   EXPECT_EQ(opendir("/"), nullptr);
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "base/file_descriptor.hpp"
#include "base/resources.hpp"

namespace axon::transport {

class Shortage {
 public:
  Shortage() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{.rlim_cur = before_.rlim_cur - num_free_descriptors().value(), .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    go_on();  // numbers below the highest
    EXPECT_EQ(num_free_descriptors(), 0U);
  }
  ~Shortage() { setrlimit(RLIMIT_NOFILE, &before_); }
  // Uses up what was freed meanwhile.
  void go_on() {
    for (int taken = dup(0); taken >= 0; taken = dup(0)) taken_.emplace_back(taken);
  }
  Shortage(const Shortage&) = delete;
  Shortage& operator=(const Shortage&) = delete;

 private:
  rlimit before_{};
  std::vector<FileDescriptor> taken_;
};

}  // namespace axon::transport
