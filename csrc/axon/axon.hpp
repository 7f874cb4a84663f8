// Active messages for C++ programs: other processes call functions with tensors. This is the only header to include.
//
//   // One process:
//   axon::Runtime runtime = axon::Runtime::open({.name = "server"}).value();
//   axon::Status added = runtime.add("double", [](axon::Invocation& invocation) {
//     axon::ValueReader values = invocation.arguments().values();
//     invocation.answer().real(2 * values.next().real);
//     invocation.reply();
//   });
//   std::vector<std::byte> address = runtime.address().value();  // pass it to the other process
//
//   // The other process:
//   axon::Runtime runtime = axon::Runtime::open({.name = "client"}).value();
//   axon::Peer server = runtime.connect(address, 10s).value();
//   axon::Call call(server, "double");
//   call.request().real(21);
//   call.start();  // never blocks
//   call.wait(1s);
//   if (call.status().ok()) std::printf("%f\n", call.reply().values().next().real);
//
// Errors are values (Status, Result). Functions throw only std::bad_alloc. Any thread may use runtimes, peers,
// mailboxes, outboxes and pools; one thread at a time may use any other object. docs/runtime.md has the rules of
// ownership.
#pragma once

#include "axon/announced.hpp"
#include "axon/call.hpp"
#include "axon/condition.hpp"
#include "axon/generator.hpp"
#include "axon/invocation.hpp"
#include "axon/mailbox.hpp"
#include "axon/message.hpp"
#include "axon/one_sided.hpp"
#include "axon/outbox.hpp"
#include "axon/peer.hpp"
#include "axon/pool.hpp"
#include "axon/publication.hpp"
#include "axon/runtime.hpp"
#include "axon/stream.hpp"

// The classes have a namespace of their own, because classes of the runtime core (axon::rpc) have the same names.
namespace axon {

using library::Access;
using library::Announced;
using library::Ask;
using library::BlockRow;
using library::Blocks;
using library::Call;
using library::Condition;
using library::Generator;
using library::GeneratorFunction;
using library::Handle;
using library::HandleOptions;
using library::Handler;
using library::Incoming;
using library::Invocation;
using library::Mail;
using library::Mailbox;
using library::MailboxOptions;
using library::Message;
using library::Next;
using library::Notification;
using library::Outbox;
using library::Peer;
using library::Plan;
using library::Pool;
using library::Publication;
using library::Received;
using library::Region;
using library::RegionOptions;
using library::Remote;
using library::Runtime;
using library::Stream;
using library::StreamOptions;
using library::Tensor;
using library::TensorView;
using library::Transfer;
using library::TransferOptions;
using library::TriggeredTransfer;
using library::TriggerOptions;
using rpc::ListenerCounts;
using rpc::RuntimeOptions;
using rpc::Value;
using rpc::ValueReader;
using rpc::ValueWriter;

}  // namespace axon
