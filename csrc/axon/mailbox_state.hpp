// The receiving end of a mailbox in C++: keeps messages as Mail, and lets threads that wait drive the engine.
#pragma once

#include <chrono>
#include <cstddef>

#include "axon/mailbox.hpp"
#include "engine/engine.hpp"
#include "rpc/core/mailboxes/mailbox.hpp"

namespace axon::library {

class Mailbox::State final : public rpc::Mailbox {
 public:
  State(engine::Engine& engine, size_t capacity) : rpc::Mailbox(capacity), engine_(engine) {}

  Result<Mail> take(std::chrono::milliseconds timeout);
  // Receives a message: the function that peers call.
  void arrive(rpc::Invocation& invocation) noexcept;

 private:
  engine::Engine& engine_;
};

}  // namespace axon::library
