// Sends long messages to other hosts over rails: TCP connections of our own, each served by a thread at either end, on
// top of a transport that carries everything else.
//
//   std::unique_ptr<Transport> transport = with_rails(std::move(network), {.num_rails = 4});
//
// Peers need this layer above their transports as well, whatever their options are. The returned transport owns
// `network`; its thread rule is Transport's. Why: docs/adr/0043-send-long-messages-between-hosts-over-rails.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/transport.hpp"

namespace axon::transport {

// Says when floating-point data is compressed. What arrives is the same.
enum class Compression : uint8_t {
  kAuto,    // over rails that are slower than the codec
  kNever,   // the peer's compressed data is still accepted
  kAlways,  // wherever that makes data shorter
};

class RailHandshakes;

struct RailOptions {
  enum class Use : uint8_t {
    kToOtherHosts,  // where the network's lanes are all TCP
    kToAll,
  };

  // Rails to each peer, and threads for each direction; 0: none, and none are accepted. Empty: by the number of cores
  // and of processes that share them.
  std::optional<size_t> num_rails;
  // For diagnostics: the reason if num_rails is 0.
  std::string why_none = "AXON_RAILS is 0";
  // The network devices over which rails run, in turn. Empty: the first address of each peer that works.
  std::vector<std::string> devices;
  Use use = Use::kToOtherHosts;
  Compression compression = Compression::kAuto;
  // The port of the network below, which then accepts rails, too; the devices are its. Null: rails open one.
  RailHandshakes* port = nullptr;
};

std::unique_ptr<Transport> with_rails(std::unique_ptr<Transport> network, const RailOptions& options);

}  // namespace axon::transport
