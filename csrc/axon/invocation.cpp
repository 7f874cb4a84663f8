#include "axon/invocation.hpp"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "rpc/core/connection.hpp"
#include "rpc/core/invocation.hpp"

namespace axon::library {

static axon::rpc::Invocation& inner(void* invocation) noexcept {
  if (invocation != nullptr) return *static_cast<axon::rpc::Invocation*>(invocation);
  std::fprintf(stderr, "torch_axon: an answer was written to an Invocation that was already answered or moved from\n");
  std::abort();
}

Invocation::Invocation(Invocation&& other) noexcept
    : invocation_(std::exchange(other.invocation_, nullptr)), has_answer_(other.has_answer_) {}

Invocation& Invocation::operator=(Invocation&& other) noexcept {
  std::swap(invocation_, other.invocation_);
  std::swap(has_answer_, other.has_answer_);
  return *this;
}

Invocation::~Invocation() {
  if (!is_answered()) fail("RuntimeError", "the function ended without an answer");
}

std::string_view Invocation::function() const noexcept {
  return is_answered() ? std::string_view() : inner(invocation_).function();
}

Received Invocation::arguments() noexcept {
  static rpc::Inbound nothing;
  return Received(is_answered() ? nothing : inner(invocation_).arguments());
}

Peer Invocation::caller() const noexcept {
  return Peer(is_answered() ? nullptr : inner(invocation_).connection());
}

bool Invocation::wants_answer() const noexcept {
  return !is_answered() && inner(invocation_).wants_answer();
}

bool Invocation::is_cancelled() const noexcept {
  return is_answered() || inner(invocation_).is_cancelled();
}

Message Invocation::answer() {
  if (!std::exchange(has_answer_, true)) inner(invocation_).answer.open();
  return Message(inner(invocation_).answer);
}

Message Invocation::answer_anew() {
  has_answer_ = false;
  return answer();
}

void Invocation::reply() noexcept {
  if (is_answered()) return;
  Message written = answer();
  axon::rpc::Invocation& invocation = inner(std::exchange(invocation_, nullptr));
  if (!invocation.answer.has_values()) written.nothing();
  invocation.answer.seal();
  invocation.reply();
}

void Invocation::fail(std::string_view class_name, std::string_view message) noexcept {
  if (!is_answered()) inner(std::exchange(invocation_, nullptr)).fail(class_name, message);
}

}  // namespace axon::library
