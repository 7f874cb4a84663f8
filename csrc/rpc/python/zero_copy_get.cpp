#include "rpc/python/zero_copy_get.hpp"

#include "python/gil.hpp"
#include "rpc/core/values.hpp"

namespace axon::rpc_python {

// By then the cause may be gone: memory or descriptors may have been exhausted.
static constexpr std::chrono::seconds kUntilAskedAgain{10};

// Tells the peer that from now on it may expose tensors on these GPUs, and on no others.
static void tell_readable_gpus(rpc::Connection& peer, const std::vector<std::string>& uuids) {
  const auto call = rpc::CallPointer::adopt(*new rpc::Call);
  call->answer = rpc::Call::Answer::kNone;
  call->request.open("axon.lend");
  rpc::ValueWriter writer(call->request.bytes());
  writer.array(2);
  writer.array(1);
  writer.array(uuids.size());
  for (const std::string& uuid : uuids) writer.binary(std::as_bytes(std::span(uuid)));
  writer.nothing();
  call->request.seal();
  peer.start(*call);
}

void ask_to_expose(rpc::Connection& peer, at::Device gpu) {
  rpc::Connection::ZeroCopyState& state = peer.zero_copy;
  sync::Clock::time_point from = state.told_from.load(std::memory_order_relaxed);
  if (from == sync::Clock::time_point::max() || sync::Clock::now() < from || !peer.is_neighbour()) return;
  if (!state.told_from.compare_exchange_strong(from, sync::Clock::time_point::max())) return;
  const std::vector<std::string> gpus = [&] {
    const python::GilReleased no_gil;
    return gpus_readable_of(peer);
  }();
  if (gpus.empty()) return;
  state.gpu.store(gpu.index());
  tell_readable_gpus(peer, gpus);
}

void ask_not_to_expose(rpc::Connection& peer) {
  peer.zero_copy.told_from.store(sync::Clock::now() + kUntilAskedAgain);
  tell_readable_gpus(peer, {});
}

}  // namespace axon::rpc_python
