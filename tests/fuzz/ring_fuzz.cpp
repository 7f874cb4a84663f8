// Fuzzes the ring that another process writes, before and while this one reads it, and the rings that it offers. Every
// delivered message lies within the ring and has the content that was read. A head that no writer writes ends the
// reading, and invalid offers are refused.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>

#include "rank.hpp"
#include "transport/rings/ring_transport.hpp"

namespace axon::transport {
namespace {

// One ring for all inputs, since making a ring takes longer than reading it.
class SharedRing {
 public:
  int descriptor() const noexcept { return writer_.descriptor(); }
  RingMemory& memory() const noexcept { return *reinterpret_cast<RingMemory*>(pages_.data()); }
  void clear() noexcept { std::memset(pages_.data(), 0, sizeof(RingMemory)); }

  RingHead take_head(Input& input, uint32_t entry) const noexcept {
    const auto plausible = input.take<uint8_t>();
    auto head = input.take<RingHead>();
    if (plausible & 1) head.entry = entry;
    if (plausible & 2) head.kind = RingHead::Kind::kMessage;
    if (plausible & 4) head.num_bytes = head.num_bytes % 64;
    if (plausible & 8) head.num_bytes = head.num_bytes % (RingMemory::kMostBytes + 2);
    return head;
  }

 private:
  RingWriter writer_ = RingWriter::make(0, 0).value();
  SharedPages pages_ = SharedPages::open(getpid(), writer_.descriptor(), sizeof(RingMemory)).value();
};

constexpr uint32_t kNumEntries = RingMemory::kNumEntries;

// Writes into the ring what the input says, and delivers its messages to a rank.
class Reading {
 public:
  Reading(Input& input, SharedRing& ring) : input_(input), ring_(ring) { ring_.clear(); }

  void act() {
    switch (input_.take<uint8_t>() % 8) {
      case 0:
        return rank_.act();
      case 1:
        return write_message();
      case 2:
        return entries(next_).head.store(ring_.take_head(input_, next_));
      case 3:
        return scribble();
      case 4:
        return go_around();
      default:
        for (int left = input_.take<uint8_t>() % 32; left != 0 && read(); --left) continue;
    }
  }

 private:
  static uint32_t entries_of(RingHead head) noexcept {
    return RingMemory::entries_of(head.num_bytes, header_num_bytes_of(head.kind));
  }
  RingEntry& entries(uint32_t entry) const noexcept { return ring_.memory().entries[entry % kNumEntries]; }

  void write_message() {
    const MessageHeader header = rank_.take_header();
    const RingHead head = ring_.take_head(input_, next_);
    std::memcpy(entries(next_).begin(), &header, sizeof header);
    entries(next_).head.store(head);
    next_ += entries_of(head);
  }

  void scribble() {
    const auto bytes = input_.take<uint64_t>();
    const size_t place = input_.take<uint16_t>() % (sizeof(RingMemory::entries) - sizeof bytes + 1);
    std::memcpy(reinterpret_cast<std::byte*>(ring_.memory().entries) + place, &bytes, sizeof bytes);
  }

  // Passes as many entries as the input says, with messages of no group.
  void go_around() {
    while (read()) continue;
    next_ = taken_;
    for (uint32_t left = input_.take<uint16_t>() % kNumEntries; left != 0 && !reader_.is_broken(); --left, ++next_) {
      std::memset(entries(next_).begin(), 0, RingEntry::kNumBytes);
      entries(next_).head.store({.kind = RingHead::Kind::kMessage, .num_bytes = 0, .entry = next_});
      CHECK(read());
    }
  }

  // Reads at most one message and checks it against the ring's content. Returns whether there was one.
  bool read() {
    const RingHead head = entries(taken_).head.load();
    const uint32_t num_left = kNumEntries - taken_ % kNumEntries;
    const uint32_t num_entries = entries_of(head);
    const bool is_there = !reader_.is_broken() && head.entry == taken_ && head.kind != RingHead::Kind::kNothing;
    const bool is_message = is_there && head.kind >= RingHead::Kind::kMessage && head.kind <= RingHead::Kind::kCall &&
                            num_entries <= num_left && head.num_bytes <= RingMemory::kMostBytes;
    const bool is_wrap = is_there && head.kind == RingHead::Kind::kWrap;
    RingEntry stood_there;
    std::memcpy(stood_there.begin(), entries(taken_).begin(), RingEntry::kNumBytes);
    unsigned num_delivered = 0;
    const unsigned num_read = reader_.read(1, [&](RingHead::Kind, const auto& header, const Payload& payload) {
      ++num_delivered;
      CHECK(is_in(stood_there, head.kind, header) && payload.num_bytes == head.num_bytes);
      check_place(head, payload);
      for (int left = input_.take<uint8_t>() % 4; left != 0; --left) scribble();
      CHECK(is_in(stood_there, head.kind, header));
      deliver(header, payload);
    });
    CHECK(num_read == (is_there ? 1 : 0) && num_delivered == (is_message ? 1 : 0));
    CHECK(!is_there || reader_.is_broken() == (!is_message && !is_wrap));
    if (is_message) taken_ += num_entries;
    if (is_wrap) taken_ += num_left;
    CHECK(taken_ - ring_.memory().num_taken.load() < ring_size::kNumEntriesPerReturn);
    return is_there;
  }

  static bool is_in(RingEntry& entry, RingHead::Kind kind, const MessageHeader& header) {
    if (kind != RingHead::Kind::kCall) return std::memcmp(&header, entry.begin(), sizeof header) == 0;
    const auto call = entry.header<ShortCallHeader>();
    const CallHeader whole = std::bit_cast<CallHeader>(header);
    return whole.kind == call.kind && whole.number == call.number;
  }
  static bool is_in(RingEntry& entry, RingHead::Kind, const TransferHeader& header) {
    return std::memcmp(&header, entry.begin(), sizeof header) == 0;
  }
  void deliver(const MessageHeader& header, const Payload& payload) { rank_.get(header, payload); }
  static void deliver(const TransferHeader&, const Payload&) {}

  // The reader has mapped the ring at another address.
  void check_place(RingHead head, const Payload& payload) {
    const size_t place = offsetof(RingMemory, entries) + taken_ % kNumEntries * kEntryBytes + sizeof(RingHead) +
                         header_num_bytes_of(head.kind);
    const std::byte* const ring = payload.bytes - place;
    if (ring_as_read_ == nullptr) ring_as_read_ = ring;
    CHECK(ring == ring_as_read_ && reinterpret_cast<uintptr_t>(ring) % static_cast<size_t>(getpagesize()) == 0);
    CHECK(payload.rendezvous == nullptr && place + payload.num_bytes <= sizeof(RingMemory));
  }

  Input& input_;
  SharedRing& ring_;
  RingReader reader_ = RingReader::open(getpid(), ring_.descriptor(), 0, 0).value();
  Rank rank_{input_};
  const std::byte* ring_as_read_ = nullptr;
  uint32_t next_ = 0;   // the entry to write next
  uint32_t taken_ = 0;  // entries that the reader has taken
};

// The descriptors that an offer can name, valid and invalid.
class Descriptors {
 public:
  static constexpr size_t kNumRings = 3;

  SharedRing& ring(uint8_t chosen) noexcept { return rings_[chosen % kNumRings]; }
  void name_rings(uint64_t writer, uint64_t reader) noexcept {
    for (SharedRing& ring : rings_) {
      ring.memory().writer = writer;
      ring.memory().reader = reader;
    }
  }
  int take(Input& input) noexcept {
    switch (const auto chosen = input.take<uint8_t>(); chosen % 8) {
      case 0:
        return unsealed_.get();
      case 1:
        return pipe_.get();
      case 2:
        return shorter_.descriptor();
      case 3:
        return input.take<int32_t>();
      default:
        return ring(chosen).descriptor();
    }
  }

 private:
  static int end_of_pipe() noexcept {
    std::array<int, 2> ends{};
    CHECK(pipe2(ends.data(), O_CLOEXEC) == 0);
    return ends[0];
  }

  std::array<SharedRing, kNumRings> rings_;
  SharedPages shorter_ = SharedPages::make(4096).value();
  FileDescriptor unsealed_{memfd_create("fuzz", MFD_CLOEXEC)};
  FileDescriptor pipe_{end_of_pipe()};
};

// A transport that is called through its doorbell, and receives messages through the rings offered there. Peers that it
// loses are dropped.
class Offers final : Receiver {
 public:
  Offers(Input& input, Descriptors& descriptors, RingDoorbell& doorbell)
      : input_(input), descriptors_(descriptors), doorbell_(doorbell) {
    for (uint8_t ring = 0; ring < Descriptors::kNumRings; ++ring) descriptors_.ring(ring).clear();
    transport_.set_receiver(*this);
  }

  void act() {
    switch (input_.take<uint8_t>() % 8) {
      case 0:
        return meet();
      case 1:
        if (!is_dropped_.empty()) drop(input_.take<uint8_t>() % is_dropped_.size());
        return;
      case 2:
        return write_head();
      case 3:
        if (!is_dropped_.empty()) send(input_.take<uint8_t>() % is_dropped_.size());
        return;
      case 4:
        transport_.arm();
        [[fallthrough]];
      case 5:
        transport_.progress();
        return;
      default:
        return call();
    }
  }

 private:
  // All addresses name one doorbell. The process whose key it has can be called back.
  RingAddress take_address() {
    const auto chosen = input_.take<uint8_t>();
    RingAddress address{
        .key = chosen % 8u, .identity = 0, .pid = getpid(), .page = doorbell_.page(), .pipe = doorbell_.pipe()};
    if (chosen % 8 == 7) address = own_;
    if (chosen & 8) address.pid = input_.take<int32_t>() | 1 << 22;  // other processes cannot be accessed here
    if (chosen & 16) address.page = descriptors_.take(input_);
    if (chosen & 32) address.pipe = descriptors_.take(input_);
    return address;
  }

  void meet() {
    if (is_dropped_.size() == 8) return;
    const auto address = std::bit_cast<std::array<std::byte, sizeof(RingAddress)>>(take_address());
    const Result<PeerId> met = transport_.add_peer(address, input_.take<uint8_t>() % 4 != 0);
    if (!met.ok()) return;
    CHECK(met.value() == is_dropped_.size());
    is_dropped_.push_back(false);
  }

  void drop(size_t peer) {
    transport_.drop_peer(static_cast<PeerId>(peer));
    is_dropped_[peer] = true;
  }

  void write_head() {
    RingMemory& memory = descriptors_.ring(input_.take<uint8_t>()).memory();
    const uint32_t entry = input_.take<uint8_t>();
    memory.entries[entry].head.store(descriptors_.ring(0).take_head(input_, entry));
  }

  void send(size_t peer) {
    if (!is_dropped_[peer]) transport_.send(static_cast<PeerId>(peer), {}, {}, unattended);
  }

  // Writes a call, or arbitrary bytes, into the pipe.
  void call() {
    const auto chosen = input_.take<uint8_t>();
    const RingCall call{.key = chosen & 1 ? own_.key : input_.take<uint64_t>(),
                        .caller = take_address(),
                        .number = chosen & 8 ? 1u : 0u,
                        .kind = chosen & 2 ? RingCall::Kind::kRing : input_.take<RingCall::Kind>(),
                        .descriptor = descriptors_.take(input_)};
    if (chosen & 16) descriptors_.name_rings(call.caller.key, own_.key);
    if (chosen & 4) {
      wake_up_pipe_.call(call);
    } else {
      const size_t num_bytes = input_.take<uint8_t>() % (sizeof call + 1);
      [[maybe_unused]] const ssize_t written = write(pipe_.get(), &call, num_bytes);
    }
  }

  void on_message(const MessageHeader&, const Payload& payload) noexcept override {
    if (payload.rendezvous == nullptr) {
      CHECK(payload.num_bytes <= RingMemory::kMostBytes);
    } else if (payload.num_bytes % 2 != 0 || payload.num_bytes > into_.size()) {
      transport_.refuse(payload.rendezvous, {ErrorCode::kMismatch, std::string(payload.num_bytes % 1000, 'x')});
    } else {
      const auto fetched = transport_.fetch(payload.rendezvous, {into_.data(), payload.num_bytes}, fetched_);
      CHECK(!fetched || !fetched->ok() || payload.num_bytes != 0);
    }
  }
  void on_peer_lost(PeerId peer, Status reason) noexcept override {
    CHECK(!reason.ok() && peer < is_dropped_.size() && !is_dropped_[peer]);
    drop(peer);
  }
  void on_refused(const char* what) noexcept override { CHECK(what != nullptr); }

  FileDescriptor open_pipe() const {
    const std::string path = "/proc/self/fd/" + std::to_string(own_.pipe);
    return FileDescriptor(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
  }

  Input& input_;
  Descriptors& descriptors_;
  RingDoorbell& doorbell_;
  std::array<std::byte, 512> into_{};
  Completion fetched_ = unattended;
  RingTransport transport_{std::make_unique<FuzzTransport>(), RingUse::kAlways};
  std::vector<bool> is_dropped_;  // indexed by peer
  RingAddress own_ = std::bit_cast<RingAddress>(
      *reinterpret_cast<const std::array<std::byte, sizeof(RingAddress)>*>(transport_.address().data()));
  WakeUpPipe wake_up_pipe_ = WakeUpPipe::open(own_).value();
  FileDescriptor pipe_ = open_pipe();
};

}  // namespace
}  // namespace axon::transport

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  setenv("AXON_LOG", "error", 1);  // refused messages cause warnings
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace axon::transport;
  static Descriptors descriptors;
  descriptors.name_rings(0, 0);
  axon::Input input(data, num_bytes);
  const auto act = [&](auto&& player) {
    for (int i = 0; i < kMostActions && !input.is_over(); ++i) player.act();
  };
  if (input.take<uint8_t>() % 4 != 0) {
    act(Reading(input, descriptors.ring(0)));
  } else {
    static RingDoorbell doorbell = RingDoorbell::make(3).value();
    act(Offers(input, descriptors, doorbell));
  }
  return 0;
}
