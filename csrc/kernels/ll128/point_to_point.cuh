// The two ends of a message over LL128: its header, and its chunks, distributed over the channels of the link.
#pragma once

#include "kernels/ll128/kernel.cuh"

namespace axon::kernels::ll128 {

struct PeerMessages {
  const std::byte* send;
  std::byte* receive;
  uint64_t send_bytes;
  uint64_t receive_bytes;
  uint32_t send_tag;
  uint32_t receive_tag;
};

// Sends the header of a point-to-point message, on a channel and by a warp of its own. Thread 0's first vector holds
// it. Returns whether it was sent; false after a fault.
__device__ __forceinline__ bool send_header(const WaitContext& wait_context, int peer, uint32_t tag) {
  SendChannels out(wait_context, 1u << peer, 0);
  Share header[1]{};
  if (thread_of_warp() == 0) header[0].first = {*reinterpret_cast<const uint64_t*>(&wait_context.ours), tag};
  if (!wait_context.is_sound() || !out.await_room(1)) return false;
  out.send(peer, 1, header);
  out.finish();
  return true;
}

// Returns false after a fault or, for thread 0, if the header is not what this rank expects.
__device__ __forceinline__ bool receive_header(const WaitContext& wait_context, int peer, uint32_t tag) {
  ReceiveChannels in(wait_context, 1u << peer, 0);
  Share header[1];
  in.poll(peer, 1, header);
  if (!wait_context.is_sound() || !in.await(peer, 1, header)) return false;
  in.finish();
  const Vector16& word = header[0].first;
  if (thread_of_warp() != 0) return true;
  if (word.low == *reinterpret_cast<const uint64_t*>(&wait_context.ours) && word.high == tag) return true;
  report_fault(wait_context.team, {.code = cuda::FaultCode::kMismatch,
                                   .peer = peer,
                                   .sequence = 0,
                                   .ours = wait_context.ours,
                                   .theirs = *reinterpret_cast<const cuda::DeviceDescriptor*>(&word.low),
                                   .our_tag = tag,
                                   .their_tag = static_cast<uint32_t>(word.high)});
  return false;
}

// Sends `part` of the message on channel `channel`.
__device__ __forceinline__ void send_part(const WaitContext& wait_context, const PeerMessages& messages, int peer,
                                          uint32_t channel, const Job& part) {
  SendChannels out(wait_context, 1u << peer, channel);
  Sender sender(out, InputMessage(messages.send, messages.send_bytes), part);
  if (wait_context.is_sound()) sender.run(peer);
}

__device__ __forceinline__ void receive_part(const WaitContext& wait_context, const PeerMessages& messages, int peer,
                                             uint32_t channel, const Job& part) {
  ReceiveChannels in(wait_context, 1u << peer, channel);
  Receiver receiver(in, OutputMessage(messages.receive, messages.receive_bytes), peer, part);
  if (wait_context.is_sound()) receiver.run();
}

}  // namespace axon::kernels::ll128
