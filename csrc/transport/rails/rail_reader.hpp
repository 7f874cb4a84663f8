// The thread that receives the stripes of one rail from all peers, each directly into the memory of its message. What
// no message expects any more is read and dropped.
//
//   RailReader reader(incoming, events);
//   AXON_TRY(reader.start());
//   reader.add(std::move(socket), name, key);   // any thread
#pragma once

#include <list>
#include <mutex>

#include "transport/rails/incoming_stripes.hpp"
#include "transport/rails/rail_thread.hpp"
#include "transport/rails/recent_names.hpp"
#include "transport/rails/stripe_compression.hpp"

namespace axon::transport {

class RailReader final : private RailThread {
 public:
  RailReader(IncomingStripes& incoming, RailEvents& events) noexcept : incoming_(incoming), events_(events) {}
  ~RailReader() { stop(); }

  Status start() { return RailThread::start("axon-rail-in"); }
  using RailThread::stop;

  // Any thread. The socket does not block; the other end is authenticated as the transport of this name.
  void add(FileDescriptor socket, uint64_t sender, const Digest& key);
  // Any thread: closes all rails from this transport soon, and those that it opens later, until it is admitted again.
  void drop(uint64_t sender);
  void admit(uint64_t sender);

 private:
  struct Connection {
    Connection(RailReader& reader, FileDescriptor of, uint64_t from, const Digest& key) noexcept
        : socket(std::move(of)), sender(from), sealer(key), decoder(reader.decoder_memory_) {}

    FileDescriptor socket;
    const uint64_t sender;
    StripeSealer sealer;
    StripeHeader header;
    size_t num_header_bytes = 0;  // received so far
    size_t num_bytes = 0;         // that follow it, received so far
    StripeDecoder decoder;
    bool is_whole = false;      // all of them are in the message's memory
    bool is_malformed = false;  // they are no frames
  };

  enum class Outcome : uint8_t { kMoved, kWaits, kEnded };

  void on_wake() noexcept override;
  void on_event(void* watched, uint32_t events) noexcept override;
  int on_round() noexcept override { return -1; }

  Outcome receive(Connection& connection) noexcept;
  Outcome receive_header(Connection& connection) noexcept;
  Outcome receive_stripe(Connection& connection) noexcept;
  ssize_t receive_raw(Connection& connection, size_t num_left) noexcept;
  ssize_t receive_compressed(Connection& connection, size_t num_left) noexcept;
  Outcome refuse(const char* what) noexcept;
  void close(Connection& connection) noexcept;

  IncomingStripes& incoming_;
  RailEvents& events_;
  DecoderMemory decoder_memory_;       // the thread's
  std::list<Connection> connections_;  // the thread's
  std::mutex mutex_;                   // guards the following members
  std::list<Connection> added_;
  RecentNames dropped_;
};

}  // namespace axon::transport
