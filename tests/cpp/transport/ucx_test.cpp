// Tests what only UCX has: settings, error codes, and foreign Active Messages.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/scoped_variable.hpp"
#include "transport/node.hpp"
#include "transport/ucx/loopback_devices.hpp"
#include "transport/ucx/ucx.hpp"
#include "transport/ucx/ucx_library.hpp"
#include "transport/ucx/ucx_status.hpp"
#include "transport/ucx/ucx_worker.hpp"

namespace axon::transport {
namespace {

TEST(UcxStatus, names_the_call_and_ucx_words) {
  ASSERT_TRUE(load_ucx().ok());
  const Status status = status_of(UCS_ERR_NO_MEMORY, "ucp_ep_create");
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "ucp_ep_create: Out of memory");
  EXPECT_TRUE(status_of(UCS_OK, "ucp_ep_create").ok());
}

TEST(UcxStatus, a_broken_connection_is_a_lost_peer) {
  ASSERT_TRUE(load_ucx().ok());
  for (const ucs_status_t broken : {UCS_ERR_CONNECTION_RESET, UCS_ERR_ENDPOINT_TIMEOUT, UCS_ERR_UNREACHABLE}) {
    EXPECT_EQ(status_of(broken, "call").code(), ErrorCode::kPeerLost) << ucx->ucs_status_string(broken);
  }
}

TEST(UcxTransport, an_unknown_setting_is_named) {
  auto transport = open_ucx_transport({.settings = {{"NO_SUCH_SETTING", "1"}}});
  ASSERT_FALSE(transport.ok());
  EXPECT_NE(transport.status().message().find("NO_SUCH_SETTING=1"), std::string::npos);
}

TEST(UcxTransport, a_variable_that_it_does_not_take_is_named) {
  const ScopedVariable variable("AXON_UCX_NO_SUCH_SETTING", "1");
  testing::internal::CaptureStderr();
  const bool opened = open_ucx_transport().ok();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(opened);
  EXPECT_NE(said.find("UCX does not accept AXON_UCX_NO_SUCH_SETTING=1 here"), std::string::npos) << said;
}

TEST(UcxTransport, no_usable_transport_is_an_error) {
  auto transport = open_ucx_transport({.settings = {{"TLS", "nonexistent"}}});
  ASSERT_FALSE(transport.ok());
  EXPECT_NE(transport.status().message().find("ucp_init"), std::string::npos) << transport.status().message();
}

// The transport's name follows UCX's address.
std::span<const std::byte> worker_address_of(Node& node) {
  const std::span<const std::byte> whole = node.transport().address();
  return whole.first(whole.size() - sizeof(uint64_t));
}

// UCX treats every peer with this host's boot id as local, and would use the loopback interface.
TEST(UcxTransport, reaches_peers_of_other_hosts_by_no_loopback_interface) {
  Node first(std::move(open_ucx_transport({.settings = {{"TLS", "tcp"}}})).value());
  Node second(std::move(open_ucx_transport({.settings = {{"TLS", "tcp"}}})).value());
  const auto has_loopback = [&](bool same_host) {
    const std::vector<Lane> lanes = first.transport().lanes(first.meet(second, same_host)).value();
    return std::ranges::any_of(lanes, [](const Lane& lane) { return lane.device == "lo"; });
  };
  if (!names_another_interface(first.transport().address())) GTEST_SKIP() << "no interface but the loopback's";
  EXPECT_TRUE(has_loopback(true));
  EXPECT_FALSE(has_loopback(false));
}

TEST(UcxAddresses, a_length_that_cannot_be_is_refused) {
  Node node(std::move(open_ucx_transport()).value());
  const std::span<const std::byte> own = worker_address_of(node);
  Result<UcxAddresses> unpacked = UcxAddresses::unpack(own);
  ASSERT_TRUE(unpacked.ok());
  EXPECT_EQ(unpacked.value().all.size() + unpacked.value().network.size() + sizeof(uint32_t), own.size());
  EXPECT_LT(unpacked.value().network.size(), unpacked.value().all.size());
  for (const size_t num_bytes : {size_t{0}, size_t{3}}) EXPECT_FALSE(UcxAddresses::unpack(own.first(num_bytes)).ok());
  Bytes lying(own.begin(), own.end());
  lying[lying.size() - 3] = std::byte{0xFF};  // claims 65,280 more bytes than there are
  EXPECT_FALSE(UcxAddresses::unpack(lying).ok());
  lying.resize(lying.size() + sizeof(uint64_t));
  EXPECT_FALSE(node.transport().add_peer(lying, true).ok());
  EXPECT_FALSE(node.transport().add_peer(own.first(7), true).ok());
}

// A UCP peer that does not follow our protocol.
class Stranger {
 public:
  explicit Stranger(Node& node) : worker_(UcxWorker::open({}, {}).value()) {
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    const std::span<const std::byte> address = UcxAddresses::unpack(worker_address_of(node)).value().all;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    EXPECT_EQ(ucx->ucp_ep_create(worker_.get(), &params, &endpoint_), UCS_OK);
  }

  void* send(const Bytes& header, const Bytes& payload, uint32_t flags) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = flags;
    return ucx->ucp_am_send_nbx(endpoint_, 1, header.data(), header.size(), payload.data(), payload.size(), &param);
  }
  void progress() { ucx->ucp_worker_progress(worker_.get()); }

 private:
  UcxWorker worker_;
  ucp_ep_h endpoint_ = nullptr;
};

TEST(UcxTransport, drops_messages_whose_header_is_of_another_length) {
  Node node(std::move(open_ucx_transport()).value());
  Stranger stranger(node);
  const Bytes payload = pattern(size_t{100} << 10, 1);
  const auto drive_both = [&](const auto& condition) {
    return drive({&node}, [&] {
      stranger.progress();
      return condition();
    });
  };
  for (const size_t num_bytes : {size_t{0}, size_t{8}, sizeof(MessageHeader) - 1, sizeof(MessageHeader) + 1}) {
    EXPECT_EQ(stranger.send(pattern(num_bytes, 1), pattern(8, 1), UCP_AM_SEND_FLAG_EAGER), nullptr);
    const Bytes header = pattern(num_bytes, 1);
    void* request = stranger.send(header, payload, UCP_AM_SEND_FLAG_RNDV);
    ASSERT_TRUE(UCS_PTR_IS_PTR(request));
    EXPECT_TRUE(drive_both([&] { return ucx->ucp_request_check_status(request) != UCS_INPROGRESS; }));
    EXPECT_EQ(ucx->ucp_request_check_status(request), UCS_ERR_REJECTED);
    ucx->ucp_request_free(request);
  }
  EXPECT_TRUE(node.arrivals.empty());
  EXPECT_EQ(stranger.send(pattern(sizeof(MessageHeader), 1), pattern(8, 1), UCP_AM_SEND_FLAG_EAGER), nullptr);
  EXPECT_TRUE(drive_both([&] { return node.arrivals.size() == 1; }));
}

}  // namespace
}  // namespace axon::transport
