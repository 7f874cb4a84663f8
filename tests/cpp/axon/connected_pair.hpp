// Two connected runtimes of the library in this process, on its engine.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "axon/axon.hpp"

namespace axon::library {

using namespace std::chrono_literals;

struct ConnectedPair {
  Runtime server = opened("server");
  Runtime client = opened("client");
  Peer to_server = client.connect(server.address().value(), 10s).value();

  static Runtime opened(const char* name) {
    Result<Runtime> runtime = Runtime::open({.name = name});
    EXPECT_TRUE(runtime.ok());
    return std::move(runtime).value();
  }
};

// Answers with the tensors of the arguments.
inline void echo(Invocation& invocation) {
  Received arguments = invocation.arguments();
  Message answer = invocation.answer();
  answer.array(arguments.num_tensors());
  for (size_t i = 0; i < arguments.num_tensors(); ++i) {
    const Tensor tensor = arguments.tensor(i);
    answer.tensor({.type = tensor.type, .shape = tensor.shape, .data = tensor.data});
  }
  invocation.reply();
}

}  // namespace axon::library
