#include "rpc/python/python_mailbox.hpp"

#include <optional>
#include <utility>

#include "python/signals.hpp"
#include "rpc/python/destinations.hpp"
#include "rpc/python/errors.hpp"
#include "rpc/python/python_runtime.hpp"

namespace axon::rpc_python {

namespace py = pybind11;

namespace {

class PythonMail final : public rpc::Mail {
 public:
  PythonMail(rpc::Invocation& invocation, const rpc::MailHeader& header, py::object value) noexcept
      : rpc::Mail(invocation, header), value_(std::move(value)) {}
  ~PythonMail() override { let_go(std::move(value_)); }

  py::object take_value() noexcept { return std::move(value_); }

 private:
  py::object value_;
};

}  // namespace

PythonMailReceiver::~PythonMailReceiver() {
  let_go(std::move(callback_));
}

bool PythonMailReceiver::watch(py::object callback) {
  if (over().load()) return false;
  callback_ = std::move(callback);
  return true;
}

void PythonMailReceiver::on_over() noexcept {
  const py::object callback = std::move(callback_);
  if (!callback) return;  // watch() will return false
  python::call_to_the_end(callback.ptr());
}

void PythonMailbox::arrive(PythonInvocation& invocation, rpc::Inbound& message) {
  rpc::ValueReader values(message.values());
  const std::optional<rpc::MailHeader> header = rpc::MailHeader::read(values);
  if (!header) return rpc::fail_as_no_mail(invocation.hand_over());
  py::object value = unpack_message(message, placement_, *invocation.connection());
  const bool is_first =
      rpc::Mailbox::arrive(std::make_unique<PythonMail>(invocation.hand_over(), *header, std::move(value)));
  static_cast<void>(is_first);  // the end of the connection is reported after all its messages
}

py::object PythonMailbox::take(PythonMailReceiver& receiver) {
  if (const std::unique_ptr<rpc::Mail> mail = receiver.take()) return static_cast<PythonMail&>(*mail).take_value();
  block_if_runtimes_end();
  raise(closed());
}

void PythonMailbox::give_up(const std::shared_ptr<PythonMailReceiver>& receiver) {
  const py::object dropped = std::move(receiver->callback_);
  rpc::Mailbox::give_up(receiver);
  python::raise_what_signals_raised();
}

bool PythonMailbox::withdraw(const std::shared_ptr<PythonMailReceiver>& receiver) {
  const py::object dropped = std::move(receiver->callback_);
  return rpc::Mailbox::withdraw(receiver);
}

}  // namespace axon::rpc_python
