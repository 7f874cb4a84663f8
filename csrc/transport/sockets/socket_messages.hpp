// The messages of SocketTransport, in both directions: whole ones, and RTS, CTS, NACK and DATA of long ones. Rails ask
// for what they are to write, and hand over what they have read.
//
//   messages.enqueue(link, header, payload, &completion);       // the link is then among those to be written
//   while (SocketLink* link = messages.take_scheduled()) …      // gather(), write, on_begun(), on_written()
//   messages.receive(link, header, payload);
//   messages.finish_ended();                                    // completions are called here, and nowhere else
//
// Owns all messages in transfer. The progress owner calls everything.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/numbered.hpp"
#include "base/size_class_pool.hpp"
#include "transport/sockets/socket_link.hpp"

namespace axon::transport {

class SocketMessages {
 public:
  // Set before anything arrives.
  void set_receiver(Receiver& receiver) noexcept { receiver_ = &receiver; }
  SizeClassPool& pool() noexcept { return pool_; }

  OutgoingMessage& enqueue(SocketLink& link, const FrameHeader& header, ConstBuffer payload,
                           Completion* completion) noexcept;
  std::optional<Status> send_to_self(SocketLink& self, const MessageHeader& header, ConstBuffer payload,
                                     Completion& completion) noexcept;
  static SocketLink& link_of(void* rendezvous) noexcept { return static_cast<IncomingMessage*>(rendezvous)->link; }
  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept;
  void refuse(void* rendezvous, const Status& why) noexcept;

  // For rails, which read. Return false, or null, for what no transport of ours sends.
  bool receive(SocketLink& link, const FrameHeader& header, std::span<const std::byte> payload) noexcept;
  std::byte* place_of(const SocketLink& link, const FrameHeader& header) noexcept;
  bool receive_data(const FrameHeader& header) noexcept;

  // For rails, which write. The link has something to write, or its rail has room.
  void schedule(SocketLink& link) noexcept;
  bool has_scheduled() const noexcept { return !scheduled_.empty(); }
  SocketLink* take_scheduled() noexcept { return scheduled_.pop_front(); }
  // Collects what follows the `num_frames` frames in the batch, which have `num_bytes`: frames in the queue, and then a
  // part of the long message whose turn it is. Stops at `most_bytes`. Returns the number of frames.
  static size_t gather(SocketLink& link, std::span<FrameWriting> batch, size_t num_frames, size_t num_bytes,
                       size_t most_bytes) noexcept;
  // The first bytes of the frame are written; all of them are.
  static void on_begun(const FrameWriting& written) noexcept;
  void on_written(const FrameWriting& written) noexcept;

  // Ends all transfers that were not left to the receiver, with the link's loss.
  void end_all_of(SocketLink& link) noexcept;
  // Ends what waits to be written.
  void end_queue_of(SocketLink& link, const Status& why) noexcept;
  // Frees everything without notice.
  void release_all_of(SocketLink& link) noexcept;
  bool has_ended() const noexcept { return !ended_.empty(); }
  unsigned finish_ended() noexcept;

 private:
  // A transfer whose completion is to be called.
  struct Ended {
    Completion* completion;
    Status status;
  };

  void receive_rts(SocketLink& link, const FrameHeader& header, OutgoingMessage* own) noexcept;
  bool receive_cts(const SocketLink& link, const FrameHeader& header) noexcept;
  bool receive_nack(const SocketLink& link, const FrameHeader& header, std::span<const std::byte> payload) noexcept;
  void end(OutgoingMessage& message, Status status) noexcept;
  void end(IncomingMessage& message, Status status) noexcept;
  void release(OutgoingMessage& message) noexcept;
  void release(IncomingMessage& message) noexcept;

  SizeClassPool pool_;
  Receiver* receiver_ = nullptr;
  IntrusiveList<SocketLink> scheduled_;
  std::vector<Ended> ended_;
  std::vector<Ended> spare_;           // empty; keeps its memory
  Numbered<OutgoingMessage> numbers_;  // long messages that wait for their CTS
  Numbered<IncomingMessage> tickets_;  // messages that wait for DATA
};

}  // namespace axon::transport
