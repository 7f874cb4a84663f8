// The receiving end of a mailbox in Python: keeps messages as Python objects. All functions need the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "rpc/core/mailboxes/mailbox.hpp"
#include "rpc/python/values.hpp"

namespace axon::rpc_python {

class PythonInvocation;

// Waits for one message.
class PythonMailReceiver final : public rpc::MailReceiver {
 public:
  ~PythonMailReceiver() override;

  // Calls `callback` once it is over. Returns false, and does not call it, if it is over already.
  bool watch(pybind11::object callback);

 private:
  friend class PythonMailbox;

  void on_over() noexcept override;

  pybind11::object callback_;
};

class PythonMailbox final : public rpc::Mailbox {
 public:
  PythonMailbox(size_t capacity, const Placement& placement) noexcept : rpc::Mailbox(capacity), placement_(placement) {}

  // Receives a message: the function that peers call.
  void arrive(PythonInvocation& invocation, rpc::Inbound& message);
  // Returns the message of a receiver that is over. Raises why the mailbox is closed if there is none.
  pybind11::object take(PythonMailReceiver& receiver);

  // As those of the core. They drop the receiver's callback, which may refer to the task that waits: Python's garbage
  // collector cannot see that cycle.
  void give_up(const std::shared_ptr<PythonMailReceiver>& receiver);
  bool withdraw(const std::shared_ptr<PythonMailReceiver>& receiver);

 private:
  const Placement placement_;
};

}  // namespace axon::rpc_python
