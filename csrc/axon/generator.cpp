#include "axon/generator.hpp"

#include <utility>

#include "axon/generators.hpp"

namespace axon::library {

Next::Next(Invocation invocation, std::shared_ptr<OpenGenerator> generator, int64_t count) noexcept
    : invocation_(std::move(invocation)), generator_(std::move(generator)), count_(count) {}

Next& Next::operator=(Next&& other) noexcept {
  std::swap(invocation_, other.invocation_);
  std::swap(generator_, other.generator_);
  std::swap(count_, other.count_);
  std::swap(has_value_, other.has_value_);
  return *this;
}

Next::~Next() {
  if (!is_answered()) fail("RuntimeError", "the generator did not produce its next value");
}

bool Next::is_cancelled() const noexcept {
  return invocation_.is_cancelled() || generator_->is_given_up();
}

Message Next::value() {
  Message answer = invocation_.answer();
  if (std::exchange(has_value_, true)) return answer;
  answer.array(2);
  answer.integer(count_);
  return answer;
}

void Next::reply() noexcept {
  if (is_answered()) return;
  if (!has_value_) value().nothing();
  invocation_.reply();
}

void Next::end() noexcept {
  if (is_answered()) return;
  generator_->end();
  invocation_.answer_anew().nothing();
  invocation_.reply();
}

void Next::fail(std::string_view class_name, std::string_view message) noexcept {
  if (is_answered()) return;
  generator_->end();
  invocation_.fail(class_name, message);
}

}  // namespace axon::library
