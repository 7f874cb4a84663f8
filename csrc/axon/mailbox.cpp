#include "axon/mailbox.hpp"

#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "axon/deadline.hpp"
#include "axon/mailbox_state.hpp"
#include "rpc/core/inbound.hpp"

namespace axon::library {

namespace {

class ReceivedMail final : public rpc::Mail {
 public:
  ReceivedMail(rpc::Invocation& invocation, const rpc::MailHeader& header, library::Mail content) noexcept
      : rpc::Mail(invocation, header), content_(std::move(content)) {}

  static library::Mail content_of(std::unique_ptr<rpc::Mail> mail) noexcept {
    return std::move(static_cast<ReceivedMail&>(*mail).content_);
  }

 private:
  library::Mail content_;
};

}  // namespace

Mail::Mail(rpc::Invocation& invocation) : sender_(invocation.connection()) {
  rpc::Inbound& inbound = invocation.arguments();
  values_.assign(inbound.values().begin(), inbound.values().end());
  for (rpc::Inbound::Tensor& tensor : inbound.tensors()) {
    Kept kept{static_cast<DataType>(tensor.dtype), {tensor.shape.begin(), tensor.shape.end()}, {}, {}, {}};
    kept.data = {tensor.data.data, tensor.data.num_bytes};
    kept.owner = std::move(tensor.owner);
    kept.host_buffer = std::move(tensor.host_buffer);
    const bool is_copied = tensor.location == rpc::TensorLocation::kHeaderFrame && kept.owner.get() == nullptr;
    if (is_copied && !kept.data.empty()) {
      kept.host_buffer = HostBuffer::take(kept.data.size());
      if (!kept.host_buffer) throw std::bad_alloc();
      std::memcpy(kept.host_buffer.data(), kept.data.data(), kept.data.size());
      kept.data = {kept.host_buffer.data(), kept.data.size()};
    }
    tensors_.push_back(std::move(kept));
  }
}

rpc::ValueReader Mail::values() const noexcept {
  rpc::ValueReader values(values_);
  rpc::MailHeader::read(values);
  return values;
}

Tensor Mail::tensor(size_t index) const noexcept {
  if (index >= tensors_.size()) return {};
  const Kept& kept = tensors_[index];
  return {.type = kept.type, .shape = kept.shape, .data = kept.data};
}

HostBuffer Mail::take(size_t index) noexcept {
  return index < tensors_.size() ? std::move(tensors_[index].host_buffer) : HostBuffer();
}

Owner Mail::take_owner(size_t index) noexcept {
  return index < tensors_.size() ? std::move(tensors_[index].owner) : Owner();
}

size_t Mailbox::probe() const noexcept {
  return state_ ? state_->probe() : 0;
}

Result<Mail> Mailbox::take(std::chrono::milliseconds timeout) {
  if (state_) return state_->take(timeout);
  return Status(ErrorCode::kInvalidArgument, "the mailbox was moved from");
}

Result<Mail> Mailbox::State::take(std::chrono::milliseconds timeout) {
  if (std::unique_ptr<rpc::Mail> mail = take_arrived()) return ReceivedMail::content_of(std::move(mail));
  const auto receiver = std::make_shared<rpc::MailReceiver>();
  receive(receiver);
  if (!engine_.wait(receiver->over(), deadline_in(timeout)) && withdraw(receiver)) {
    return Status(ErrorCode::kTimeout, "no message arrived within " + std::to_string(timeout.count()) + " ms");
  }
  if (std::unique_ptr<rpc::Mail> mail = receiver->take()) return ReceivedMail::content_of(std::move(mail));
  return closed();
}

void Mailbox::State::arrive(rpc::Invocation& invocation) noexcept {
  rpc::ValueReader values(invocation.arguments().values());
  const std::optional<rpc::MailHeader> header = rpc::MailHeader::read(values);
  if (!header) return rpc::fail_as_no_mail(invocation);
  const std::shared_ptr<rpc::Connection> sender = invocation.connection();
  std::unique_ptr<rpc::Mail> mail;
  try {
    mail = std::make_unique<ReceivedMail>(invocation, *header, Mail(invocation));
  } catch (const std::exception& error) {  // no memory
    return invocation.fail("RuntimeError", error.what());
  }
  if (rpc::Mailbox::arrive(std::move(mail)) && sender->has_ended()) drop(*sender);
}

}  // namespace axon::library
