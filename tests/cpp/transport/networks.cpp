#include "transport/networks.hpp"

#include <stdexcept>

#include "transport/loopback/loopback.hpp"
#include "transport/preferred/preferred.hpp"
#include "transport/rails/rails.hpp"
#include "transport/rings/rings.hpp"
#include "transport/sockets/sockets.hpp"
#include "transport/ucx/ucx.hpp"

namespace axon::transport {

namespace {

class LoopbackNetwork final : public Network {
 public:
  explicit LoopbackNetwork(FaultPlan plan) : fabric_(std::move(plan)) {}
  std::unique_ptr<Transport> make_transport() override { return fabric_.make_transport(); }

 private:
  LoopbackFabric fabric_;
};

class UcxNetwork final : public Network {
 public:
  enum class Over : uint8_t { kSharedMemory, kTcp };

  explicit UcxNetwork(Over over) : over_(over) {}

  std::unique_ptr<Transport> make_transport() override {
    const UcxOptions tcp_only{.settings = {{"TLS", "tcp"}, {"NET_DEVICES", "lo"}}};
    auto transport = open_ucx_transport(over_ == Over::kTcp ? tcp_only : UcxOptions{});
    if (!transport.ok()) throw std::runtime_error(transport.status().message());
    return std::move(transport).value();
  }
  bool same_host() const noexcept override { return over_ == Over::kSharedMemory; }

 private:
  const Over over_;
};

class RailsAbove final : public Network {
 public:
  explicit RailsAbove(std::unique_ptr<Network> network, RailOptions options = kToAll)
      : network_(std::move(network)), options_(std::move(options)) {}
  std::unique_ptr<Transport> make_transport() override { return with_rails(network_->make_transport(), options_); }
  bool same_host() const noexcept override { return network_->same_host(); }

  static inline const RailOptions kToAll{
      .num_rails = 2, .devices = {"lo"}, .use = RailOptions::Use::kToAll, .compression = Compression::kAlways};

 private:
  const std::unique_ptr<Network> network_;
  const RailOptions options_;
};

class SocketsNetwork final : public Network {
 public:
  enum class Above : uint8_t { kNothing, kRails };

  explicit SocketsNetwork(Above above) : above_(above) {}

  std::unique_ptr<Transport> make_transport() override {
    const std::string devices[] = {"lo"};
    auto sockets = open_sockets(devices);
    if (!sockets.ok()) throw std::runtime_error(sockets.status().message());
    if (above_ == Above::kNothing) return std::move(sockets.value().transport);
    RailOptions options = RailsAbove::kToAll;
    options.port = sockets.value().port;
    return with_rails(std::move(sockets.value().transport), options);
  }
  bool same_host() const noexcept override { return false; }

 private:
  const Above above_;
};

class PreferredNetwork final : public Network {
 public:
  std::unique_ptr<Transport> make_transport() override {
    const std::string devices[] = {"lo"};
    auto sockets = open_sockets(devices);
    if (!sockets.ok()) throw std::runtime_error(sockets.status().message());
    auto joined = with_preferred(kUcxTcp.make()->make_transport(), std::move(sockets).value());
    if (!joined.ok()) throw std::runtime_error(joined.status().message());
    return std::move(joined).value();
  }
  bool same_host() const noexcept override { return false; }
};

class RingsAbove final : public Network {
 public:
  explicit RingsAbove(std::unique_ptr<Network> network, RingUse use = RingUse::kAlways)
      : network_(std::move(network)), use_(use) {}
  std::unique_ptr<Transport> make_transport() override { return with_rings(network_->make_transport(), use_); }

 private:
  const std::unique_ptr<Network> network_;
  const RingUse use_;
};

}  // namespace

const NetworkKind kLoopback{
    "loopback", []() -> std::unique_ptr<Network> { return std::make_unique<LoopbackNetwork>(FaultPlan{}); }};
const NetworkKind kLoopbackWithFaults{
    "loopback_with_faults", []() -> std::unique_ptr<Network> {
      return std::make_unique<LoopbackNetwork>(
          FaultPlan{.seed = 1, .mailbox_capacity = 16, .pending = 0.5, .delay = 0.3, .reorder = 0.3, .kills = {}});
    }};
const NetworkKind kUcxSharedMemory{"ucx_shared_memory", []() -> std::unique_ptr<Network> {
                                     return std::make_unique<UcxNetwork>(UcxNetwork::Over::kSharedMemory);
                                   }};
const NetworkKind kUcxTcp{
    "ucx_tcp", []() -> std::unique_ptr<Network> { return std::make_unique<UcxNetwork>(UcxNetwork::Over::kTcp); }};

const NetworkKind kRails{"rails", []() -> std::unique_ptr<Network> {
                           return std::make_unique<RailsAbove>(std::make_unique<LoopbackNetwork>(FaultPlan{}));
                         }};
const NetworkKind kRailsWithFaults{
    "rails_with_faults", []() -> std::unique_ptr<Network> {
      return std::make_unique<RailsAbove>(std::make_unique<LoopbackNetwork>(
          FaultPlan{.seed = 1, .mailbox_capacity = 16, .pending = 0.5, .delay = 0.3, .reorder = 0.3, .kills = {}}));
    }};
const NetworkKind kRailsTcp{"rails_tcp", []() -> std::unique_ptr<Network> {
                              return std::make_unique<RailsAbove>(kUcxTcp.make(),
                                                                  RailOptions{.num_rails = 2, .devices = {"lo"}});
                            }};

const NetworkKind kSockets{"sockets", []() -> std::unique_ptr<Network> {
                             return std::make_unique<SocketsNetwork>(SocketsNetwork::Above::kNothing);
                           }};
const NetworkKind kSocketsAndRails{"sockets_and_rails", []() -> std::unique_ptr<Network> {
                                     return std::make_unique<SocketsNetwork>(SocketsNetwork::Above::kRails);
                                   }};

const NetworkKind kPreferred{"preferred",
                             []() -> std::unique_ptr<Network> { return std::make_unique<PreferredNetwork>(); }};

const NetworkKind kRings{
    "rings", []() -> std::unique_ptr<Network> {
      return std::make_unique<RingsAbove>(std::make_unique<RailsAbove>(kUcxSharedMemory.make(), RailOptions{}));
    }};
const NetworkKind kRingsCopies{"rings_copies", []() -> std::unique_ptr<Network> {
                                 return std::make_unique<RingsAbove>(kLoopback.make(), RingUse::kCopies);
                               }};

}  // namespace axon::transport
