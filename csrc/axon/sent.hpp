// What has been sent to one tag of a peer's, by number. Each message tells below which number all have found their end,
// accepted or not, so that none of those is waited for. Where one fails that others are behind already, the peer is
// told by itself.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include "axon/peer.hpp"
#include "base/status.hpp"

namespace axon::library {

class Sent : public std::enable_shared_from_this<Sent> {
 public:
  Sent(Peer peer, std::string_view tag);

  const Peer& peer() const noexcept { return peer_; }
  const std::string& function() const noexcept { return function_; }

  struct Turn {
    int64_t number;
    int64_t settled;
  };
  Turn next() noexcept;
  // The message of this number has found its end.
  void on_end(int64_t number, const Status& status) noexcept;
  // So has the word of what is settled.
  void on_told(int64_t settled, const Status& status) noexcept;

 private:
  void tell_if_waited_for();

  const Peer peer_;
  const std::string tag_;
  const std::string function_;
  std::mutex mutex_;  // guards what follows
  int64_t num_sent_ = 0;
  int64_t settled_ = 0;     // all below have found their end
  std::set<int64_t> done_;  // so have these, above
  int64_t failed_ = 0;      // the latest that has, and one more
  int64_t told_ = 0;        // what the peer has heard of, by itself
  bool is_telling_ = false;
};

}  // namespace axon::library
