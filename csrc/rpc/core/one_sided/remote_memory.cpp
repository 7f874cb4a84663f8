#include "rpc/core/one_sided/remote_memory.hpp"

#include <utility>

#include "rpc/core/connection.hpp"

namespace axon::rpc {

namespace {

class ReleaseGrant final : public engine::Submission {
 public:
  ReleaseGrant(std::shared_ptr<Connection> connection, uint32_t grant) noexcept
      : connection_(std::move(connection)), grant_(grant) {}
  void begin() noexcept override {
    connection_->one_sided().initiator().release_grant(grant_);
    delete this;
  }
  void complete() noexcept override {}

 private:
  const std::shared_ptr<Connection> connection_;  // shared with the runtime, which may be closed first
  const uint32_t grant_;
};

}  // namespace

RemoteMemory::RemoteMemory(std::shared_ptr<Connection> connection, uint32_t number, GrantInfo info)
    : connection_(std::move(connection)), number_(number), info_(std::move(info)) {}

RemoteMemory::~RemoteMemory() {
  engine::Engine& engine = connection_->engine();
  if (engine.is_forked() || engine.has_ended()) return;
  engine.submit_after_completion(*new ReleaseGrant(connection_, number_));
}

}  // namespace axon::rpc
