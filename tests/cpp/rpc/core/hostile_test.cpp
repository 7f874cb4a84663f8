// A connected peer that sends arbitrary messages: its own calls fail, calls of others continue, and nothing is stored
// that it did not announce.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "rpc/core/header_frame_reader.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

struct IgnoredSends final : Outbound::Listener {
  void on_sent() noexcept override {}
};

// Records the bytes of a header frame as the transport gets them.
class Recorder final : public transport::Transport {
 public:
  void set_receiver(transport::Receiver&) noexcept override {}
  std::span<const std::byte> address() const noexcept override { return {}; }
  Result<transport::PeerId> add_peer(std::span<const std::byte>, bool) override { return transport::PeerId{0}; }
  Result<std::vector<transport::Lane>> lanes(transport::PeerId) override { return std::vector<transport::Lane>(); }
  std::optional<Status> send(transport::PeerId, const transport::MessageHeader&, ConstBuffer payload,
                             transport::Completion&) noexcept override {
    sent.emplace_back(payload.data, payload.data + payload.num_bytes);
    return Status();
  }
  std::optional<Status> send_rendezvous(transport::PeerId peer, const transport::MessageHeader& header,
                                        ConstBuffer payload, transport::Completion& completion) noexcept override {
    return send(peer, header, payload, completion);
  }
  std::optional<Status> fetch(void*, Buffer, transport::Completion&) noexcept override { return Status(); }
  void refuse(void*, const Status&) noexcept override {}
  void drop_peer(transport::PeerId) noexcept override {}
  unsigned progress() noexcept override { return 0; }
  int event_fd() const noexcept override { return -1; }
  bool arm() noexcept override { return true; }
  void flush(int) noexcept override {}

  std::vector<transport::Bytes> sent;
};

struct NoLosses final : messaging::LossListener {
  void on_peer_lost(transport::PeerId, Status) noexcept override {}
};

transport::Bytes first_of(Outbound& outbound) {
  Recorder recorder;
  NoLosses losses;
  messaging::Messenger messenger(recorder, losses);
  EXPECT_TRUE(outbound.send(messenger, 0, {}, transport::MessageKind::kInvokePayload).ok());
  return recorder.sent.front();
}

transport::Bytes header_frame(std::string_view function, size_t num_bytes) {
  IgnoredSends listener;
  Outbound outbound(listener);
  const transport::Bytes content = transport::pattern(num_bytes, 1);
  fill(outbound, function, content);
  return first_of(outbound);
}

// Returns the header frame of a call with an exposed tensor.
transport::Bytes exposing_header_frame(std::string_view function) {
  static const int64_t kShape[] = {1'000'000};
  IgnoredSends listener;
  Outbound outbound(listener);
  outbound.open(function);
  outbound.expose({.dtype = static_cast<uint8_t>(DataType::kUint8), .shape = kShape, .data = {nullptr, 1'000'000}}, {},
                  Owner());
  outbound.seal();
  return first_of(outbound);
}

TEST(HeaderFrame, is_read_as_it_was_written) {
  for (const size_t num_bytes : {0u, 5u, 4096u, 100'000u}) {
    transport::Bytes bytes = header_frame("function", num_bytes);
    HeaderFrame read;
    std::vector<Inbound::Tensor> tensors;
    ASSERT_EQ(read_header_frame(bytes, 1 << 20, read, tensors), nullptr);
    EXPECT_EQ(read.name, "function");
    EXPECT_EQ(ValueReader(read.values).next().integer, static_cast<int64_t>(num_bytes));
    ASSERT_EQ(tensors.size(), 1u);
    EXPECT_EQ(tensors[0].data.num_bytes, num_bytes);
    EXPECT_EQ(read.num_payload_frames, num_bytes > 4096 ? 1u : 0u);
  }
}

TEST(HeaderFrame, cut_anywhere_is_refused) {
  const transport::Bytes whole = header_frame("function", 100);
  for (size_t length = 0; length < whole.size(); ++length) {
    transport::Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    HeaderFrame read;
    std::vector<Inbound::Tensor> tensors;
    EXPECT_NE(read_header_frame(cut, 1 << 20, read, tensors), nullptr) << length << " bytes";
  }
}

TEST(HeaderFrame, more_than_a_message_may_have_is_refused) {
  transport::Bytes bytes = header_frame("function", 100'000);
  HeaderFrame read;
  std::vector<Inbound::Tensor> tensors;
  EXPECT_STREQ(read_header_frame(bytes, 99'999, read, tensors), "the message exceeds max_message_num_bytes");
}

// Returns the error for one tensor without bytes, with this descriptor and these sizes.
const char* fault_of(TensorDescriptor descriptor, const std::vector<int64_t>& sizes) {
  const HeaderFramePrefix prefix{.num_tensors = 1};
  descriptor.num_dimensions = static_cast<uint8_t>(sizes.size());
  transport::Bytes bytes(sizeof prefix + sizeof descriptor + sizes.size() * sizeof(int64_t));
  std::memcpy(bytes.data(), &prefix, sizeof prefix);
  std::memcpy(bytes.data() + sizeof prefix, &descriptor, sizeof descriptor);
  std::memcpy(bytes.data() + sizeof prefix + sizeof descriptor, sizes.data(), sizes.size() * sizeof(int64_t));
  HeaderFrame read;
  std::vector<Inbound::Tensor> tensors;
  return read_header_frame(bytes, uint64_t{1} << 60, read, tensors);
}

TEST(HeaderFrame, tensors_are_as_long_as_their_sizes_say) {
  constexpr uint8_t kFloat = static_cast<uint8_t>(DataType::kFloat32), kOfTheClients = 200;
  constexpr int64_t kHuge = int64_t{1} << 32;
  const auto fault = [](uint8_t dtype, uint16_t element_num_bytes, const std::vector<int64_t>& sizes) {
    return fault_of({.dtype = dtype, .location = TensorLocation::kPayloadFrame, .element_num_bytes = element_num_bytes},
                    sizes);
  };
  EXPECT_EQ(fault(kFloat, 4, {1000}), nullptr);
  EXPECT_EQ(fault(kOfTheClients, 3, {1000}), nullptr);
  EXPECT_EQ(fault(kOfTheClients, 0, {0, 5}), nullptr);
  EXPECT_STREQ(fault(kFloat, 8, {1000}), "a tensor's element size does not match its type");
  for (const uint16_t element_num_bytes : {0, 2}) {
    EXPECT_STREQ(fault(kOfTheClients, element_num_bytes, {kHuge, kHuge}), "a tensor has an invalid shape");
  }
  EXPECT_STREQ(fault(kOfTheClients, 0, {5}), "a tensor has an invalid shape");
  EXPECT_STREQ(fault(kFloat, 4, {-1}), "a tensor has an invalid shape");
}

TEST(HeaderFrame, a_tensor_of_another_length_than_its_shape_is_not_sent) {
  static const int64_t kShape[] = {3};
  IgnoredSends listener;
  Outbound outbound(listener);
  outbound.open("function");
  const transport::Bytes bytes(13);
  outbound.add({.dtype = static_cast<uint8_t>(DataType::kFloat32), .shape = kShape, .data = {bytes.data(), 13}});
  outbound.seal();
  ASSERT_FALSE(outbound.fits().ok());
  EXPECT_EQ(outbound.fits().message(), "a tensor of 3 elements has 13 bytes; expected: 12");
}

static std::string refusal_of(const std::vector<int64_t>& shape, ConstBuffer data) {
  IgnoredSends listener;
  Outbound outbound(listener);
  outbound.open("function");
  outbound.add({.dtype = static_cast<uint8_t>(DataType::kUint8), .shape = shape, .data = data});
  outbound.seal();
  return outbound.fits().ok() ? "" : outbound.fits().message();
}

TEST(HeaderFrame, a_tensor_of_an_impossible_shape_or_without_memory_is_not_sent) {
  constexpr int64_t kHuge = int64_t{1} << 32;
  const std::byte one{};
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{-1, -1}, {kHuge, kHuge}}) {
    EXPECT_TRUE(refusal_of(shape, {&one, 1}).starts_with("a tensor's shape has a negative size"));
  }
  for (const size_t num_bytes : {size_t{8}, size_t{100'000}}) {
    EXPECT_TRUE(refusal_of({static_cast<int64_t>(num_bytes)}, {nullptr, num_bytes}).ends_with("its data is null"));
  }
  EXPECT_EQ(refusal_of({0}, {}), "");
}

TEST(HeaderFrame, changed_bytes_are_refused_or_stay_within_bounds) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const transport::Bytes whole = header_frame("function", 100);
  for (int i = 0; i < 100'000; ++i) {
    transport::Bytes bytes = whole;
    for (size_t k = 0; k < 1 + random() % 3; ++k) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    HeaderFrame read;
    std::vector<Inbound::Tensor> tensors;
    if (read_header_frame(bytes, 1 << 20, read, tensors) != nullptr) continue;
    for (const Inbound::Tensor& tensor : tensors) {
      ASSERT_LE(tensor.data.num_bytes, size_t{1} << 20);
      if (tensor.location == TensorLocation::kPayloadFrame || tensor.data.num_bytes == 0) continue;
      ASSERT_GE(tensor.data.data, bytes.data());
      ASSERT_LE(tensor.data.data + tensor.data.num_bytes, bytes.data() + bytes.size());
    }
    ValueReader values(read.values);
    while (values.next().kind != Value::Kind::kBroken) {
    }
  }
}

// Sends as the client, whose keys it has.
class HostileTest : public testing::Test, private transport::Receiver {
 protected:
  HostileTest() : HostileTest(RuntimeOptions()) {}
  explicit HostileTest(const RuntimeOptions& servers) : pair_(engine::loopback_transports(fabric_, 2), servers) {
    transport_->set_receiver(*this);
    peer_ = transport_->add_peer(pair_.server_engine().peers().own_address().transport_address, true).value();
    EXPECT_TRUE(pair_.server->add("echo", echo).ok());
  }

  void send(transport::MessageKind kind, uint32_t number, uint32_t tensor, const transport::Bytes& payload) {
    const transport::CallHeader header{
        .key = pair_.to_server->identity().peer_key, .kind = kind, .number = number, .tensor = tensor};
    transport::Completion completion{.done = [](transport::Completion&, Status) noexcept {}};
    EXPECT_TRUE(transport_->send(peer_, header, {payload.data(), payload.size()}, completion).has_value());
  }

  void expect_service() {
    const transport::Bytes bytes = transport::pattern(100'000, 3);
    const CallPointer call = invoke(*pair_.to_server, "echo", bytes);
    ASSERT_TRUE(call->status().ok()) << call->status().message();
    EXPECT_EQ(content(call->reply()), bytes);
  }

  static constexpr uint32_t kWindow = Connection::kWindow;
  transport::LoopbackFabric fabric_{{.largest_eager_num_bytes = 1 << 20, .mailbox_capacity = 1 << 20}};
  TwoRuntimes pair_;
  std::unique_ptr<transport::Transport> transport_ = fabric_.make_transport();
  transport::PeerId peer_ = 0;

 private:
  void on_message(const transport::MessageHeader&, const transport::Payload&) noexcept override {}
  void on_peer_lost(transport::PeerId, Status) noexcept override {}
};

// Sends exposed tensors to a server that accepts them.
class HostileExposer : public HostileTest {
 protected:
  HostileExposer() : HostileTest({.name = "", .accepts_exposed = true}) {
    const auto take = [this](Invocation& invocation) {
      num_taken_.fetch_add(static_cast<int>(invocation.arguments().tensors().size()));
      invocation.answer.open();
      invocation.answer.seal();
      invocation.reply();
    };
    EXPECT_TRUE(pair_.server->add("take", take).ok());
  }

  // Sends the payload frame that represents the tensor and waits for its reader, with this size.
  void offer(uint32_t number, uint32_t tensor, size_t num_bytes) {
    const transport::CallHeader header{.key = pair_.to_server->identity().peer_key,
                                       .kind = transport::MessageKind::kInvokePayload,
                                       .number = number,
                                       .tensor = tensor};
    const bool is_over = transport_->send_rendezvous(peer_, header, {bytes_.data(), num_bytes}, ended_).has_value();
    num_offered_ += is_over ? 0 : 1;
  }

  bool comes_true(const std::function<bool()>& condition) {
    const Clock::time_point deadline = Clock::now() + 30s;
    while (!condition() && Clock::now() < deadline) transport_->progress();
    return condition();
  }

  struct Ended : transport::Completion {
    int count = 0;
  };

  const transport::Bytes bytes_ = transport::pattern(100, 1);
  std::atomic<int> num_taken_{0};
  Ended ended_{{.done = [](transport::Completion& self, Status) noexcept { ++static_cast<Ended&>(self).count; }}};
  int num_offered_ = 0;
};

TEST_F(HostileTest, noise_of_every_kind_changes_nothing_for_others) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const transport::Bytes whole = header_frame("echo", 200);
  for (int i = 0; i < 20'000; ++i) {
    transport::Bytes payload = random() % 4 == 0 ? transport::pattern(random() % 300, random()) : whole;
    if (!payload.empty()) payload[random() % payload.size()] = static_cast<std::byte>(random());
    const auto kind = static_cast<transport::MessageKind>(16 + random() % 7);  // all kinds except close
    // Slots that the client does not use here, in any order.
    send(kind, static_cast<uint32_t>(500 + random() % 500 + kWindow * (random() % 50)),
         static_cast<uint32_t>(random() % 5), payload);
  }
  expect_service();
}

TEST_F(HostileTest, payload_frames_without_header_frames_are_bounded) {
  for (uint32_t tensor = 0; tensor < kMostTensors + 10; ++tensor) {
    send(transport::MessageKind::kInvokePayload, 700 + kWindow, tensor, transport::pattern(8, tensor));
  }
  expect_service();
}

TEST_F(HostileTest, repeated_calls_run_once) {
  std::atomic<int> num_run{0};
  ASSERT_TRUE(pair_.server
                  ->add("count",
                        [&](Invocation& invocation) {
                          num_run.fetch_add(1);
                          echo(invocation);
                        })
                  .ok());
  const transport::Bytes call = header_frame("count", 10);
  for (int i = 0; i < 5; ++i) send(transport::MessageKind::kInvoke, 800 + kWindow, 0, call);
  const Clock::time_point deadline = Clock::now() + 30s;
  while ((num_run.load() == 0 || !pair_.server->is_idle()) && Clock::now() < deadline) std::this_thread::yield();
  send(transport::MessageKind::kInvoke, 800 + 2 * kWindow, 0, call);
  send(transport::MessageKind::kInvoke, 800 + kWindow, 0, call);
  expect_service();
  EXPECT_EQ(num_run.load(), 2);
}

TEST_F(HostileExposer, the_frame_of_an_exposed_tensor_is_as_it_is_said_to_be) {
  const transport::Bytes call = exposing_header_frame("take");
  send(transport::MessageKind::kInvoke, 800 + kWindow, 0, call);
  offer(800 + kWindow, 0, kExposedFrameNumBytes);  // correct
  ASSERT_TRUE(comes_true([&] { return num_taken_.load() == 1; }));
  send(transport::MessageKind::kInvoke, 801 + kWindow, 0, call);
  offer(801 + kWindow, 0, kExposedFrameNumBytes + 1);  // too long
  send(transport::MessageKind::kInvoke, 802 + kWindow, 0, call);
  send(transport::MessageKind::kInvokePayload, 802 + kWindow, 0,
       transport::pattern(kExposedFrameNumBytes, 1));  // arrives eagerly: the reader could not acknowledge it
  send(transport::MessageKind::kInvoke, 803 + kWindow, 0, call);
  offer(803 + kWindow, 1, kExposedFrameNumBytes);  // of another tensor
  offer(804 + kWindow, 0, kExposedFrameNumBytes);  // before its call, twice
  offer(804 + kWindow, 0, kExposedFrameNumBytes);
  send(transport::MessageKind::kInvoke, 804 + kWindow, 0, call);
  send(transport::MessageKind::kInvoke, 805 + kWindow, 0, call);  // never arrives
  send(transport::MessageKind::kCancel, 805 + kWindow, 0, {});
  expect_service();
  EXPECT_TRUE(comes_true([&] { return ended_.count == num_offered_; })) << ended_.count << " of " << num_offered_;
  EXPECT_TRUE(comes_true([&] { return pair_.server->is_idle(); }));
}

TEST_F(HostileTest, messages_of_other_keys_are_refused) {
  const uint64_t before = pair_.server_engine().num_refused();
  testing::internal::CaptureStderr();
  const transport::CallHeader header{.key = 12345, .kind = transport::MessageKind::kInvoke};
  transport::Completion completion{.done = [](transport::Completion&, Status) noexcept {}};
  const transport::PeerId peer =
      transport_->add_peer(pair_.server_engine().peers().own_address().transport_address, true).value();
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(transport_->send(peer, header, {}, completion).has_value());
  expect_service();
  EXPECT_EQ(pair_.server_engine().num_refused(), before + 10);
  testing::internal::GetCapturedStderr();
}

}  // namespace
}  // namespace axon::rpc
