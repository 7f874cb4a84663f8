#include "axon/one_sided.hpp"

#include "axon/deadline.hpp"
#include "axon/peer.hpp"
#include "rpc/core/connection.hpp"
#include "rpc/core/drive_until.hpp"
#include "rpc/core/one_sided/transfer_plan.hpp"
#include "rpc/core/one_sided/triggered_transfer.hpp"
#include "rpc/core/runtime_core.hpp"

namespace axon::library {

// ---- Regions

const std::string& Region::name() const noexcept {
  return region_->name();
}

uint64_t Region::num_bytes() const noexcept {
  return region_->num_bytes();
}

Result<Handle> Region::handle(const HandleOptions& options) const {
  const uint64_t to_end = region_->num_bytes() - std::min(options.offset, region_->num_bytes());
  const auto access = options.access ? static_cast<rpc::Access>(*options.access) : region_->access();
  return core_->exposed()->regions.handle(*region_, {.offset = options.offset,
                                                     .num_bytes = options.num_bytes.value_or(to_end),
                                                     .access = access,
                                                     .peer = options.peer});
}

bool Region::close(std::chrono::milliseconds at_most) {
  core_->revoke(*region_);
  if (core_->engine().is_forked() || engine::Engine::is_completing()) return core_->is_at_rest(*region_);
  return rpc::drive_until(core_->engine(), [&] { return core_->is_at_rest(*region_); }, deadline_in(at_most));
}

std::vector<std::string> Region::holders() const {
  return core_->holders(*region_);
}

// ---- Remote memory

const std::string& Remote::region() const noexcept {
  return memory_->region();
}

Access Remote::access() const noexcept {
  return static_cast<Access>(memory_->access());
}

const char* Remote::path() const noexcept {
  return memory_->name_of_path();
}

Result<Remote> Remote::slice(uint64_t offset, uint64_t num_bytes) const {
  if (offset <= num_bytes_ && num_bytes <= num_bytes_ - offset) return Remote(memory_, offset_ + offset, num_bytes);
  return Status(ErrorCode::kInvalidArgument, "slice: offset " + std::to_string(offset) + " and " +
                                                 std::to_string(num_bytes) + " bytes exceed the memory of " +
                                                 std::to_string(num_bytes_) + " bytes");
}

// ---- Transfers

Transfer& Transfer::operator=(Transfer&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

Transfer::~Transfer() {
  if (state_ != nullptr) state_->release();
}

bool Transfer::wait(std::chrono::milliseconds timeout) noexcept {
  return state_ == nullptr || state_->connection()->one_sided().wait(*state_, deadline_in(timeout));
}

bool Transfer::finished() const noexcept {
  return state_ == nullptr || state_->finished();
}

bool Transfer::released() const noexcept {
  return state_ == nullptr || state_->released();
}

void Transfer::cancel() noexcept {
  if (state_ != nullptr) state_->connection()->one_sided().cancel(*state_);
}

const Status& Transfer::status() const noexcept {
  static const Status moved_away(ErrorCode::kInvalidArgument, "the transfer was moved from");
  return state_ == nullptr ? moved_away : state_->status();
}

// ---- What a peer exposes

static Status check_notification(const std::optional<std::string>& notification) {
  if (!notification || notification->size() <= rpc::Notifications::kLongest) return {};
  return {ErrorCode::kInvalidArgument, "notification has " + std::to_string(notification->size()) +
                                           " bytes; allowed: up to " + std::to_string(rpc::Notifications::kLongest)};
}

static Result<Transfer> start(rpc::Counted<rpc::Transfer> transfer, TransferOptions options) {
  AXON_TRY(check_notification(options.notification));
  transfer->timeout = bounded(options.timeout);
  transfer->notification = std::move(options.notification);
  transfer->keep(std::move(options.owner));
  transfer->connection()->one_sided().start(*transfer);
  transfer->retain();
  return Transfer(transfer.get());
}

static rpc::Counted<rpc::Transfer> transfer_of(rpc::Transfer::Kind kind,
                                               const std::shared_ptr<rpc::Connection>& connection) {
  return rpc::Counted<rpc::Transfer>::adopt(*new rpc::Transfer(kind, connection));
}

static Status is_empty() {
  return {ErrorCode::kInvalidArgument, "the peer is empty"};
}

Result<Remote> Peer::open(const Handle& handle, std::chrono::milliseconds timeout) const {
  if (!connection_) return is_empty();
  if (engine::Engine::is_completing()) {
    return Status(ErrorCode::kInvalidArgument, "open: called by a callback; allowed: where a thread may wait");
  }
  const auto opening = transfer_of(rpc::Transfer::Kind::kOpen, connection_);
  opening->handle = handle;
  opening->timeout = bounded(timeout);
  connection_->one_sided().start(*opening);
  // The transfer has a timeout of its own, which says more.
  while (!connection_->one_sided().wait(*opening, deadline_in(std::chrono::seconds(1)))) {
  }
  if (!opening->status().ok()) return opening->status().clone();
  return Remote(opening->opened(), 0, opening->opened()->num_bytes());
}

static Status check_remote(const std::shared_ptr<rpc::Connection>& connection, const Remote& remote) {
  if (!connection) return is_empty();
  if (remote.memory() != nullptr && remote.memory()->connection() == connection) return {};
  return {ErrorCode::kInvalidArgument, "remote was opened with another peer"};
}

static Result<Transfer> start_block(rpc::Transfer::Kind kind, const std::shared_ptr<rpc::Connection>& connection,
                                    const Remote& remote, Buffer local, TransferOptions options) {
  AXON_TRY(check_remote(connection, remote));
  if (remote.num_bytes() != local.num_bytes) {
    return Status(ErrorCode::kInvalidArgument, "local memory has " + std::to_string(local.num_bytes) +
                                                   " bytes, and the remote memory " +
                                                   std::to_string(remote.num_bytes()) + "; allowed: equal sizes");
  }
  auto transfer = transfer_of(kind, connection);
  transfer->add(remote.memory(), remote.offset(), local);
  return start(std::move(transfer), std::move(options));
}

Result<Transfer> Peer::read(const Remote& remote, std::span<std::byte> into, TransferOptions options) const {
  const Buffer local{.data = into.data(), .num_bytes = into.size()};
  return start_block(rpc::Transfer::Kind::kRead, connection_, remote, local, std::move(options));
}

Result<Transfer> Peer::write(const Remote& remote, std::span<const std::byte> source, TransferOptions options) const {
  const Buffer only_read{.data = const_cast<std::byte*>(source.data()), .num_bytes = source.size()};
  return start_block(rpc::Transfer::Kind::kWrite, connection_, remote, only_read, std::move(options));
}

static rpc::BlockLayout layout_of(const Blocks& blocks) {
  return {.offset = blocks.offset,
          .num_bytes = blocks.num_bytes,
          .stride = blocks.stride != 0 ? blocks.stride : blocks.num_bytes,
          .count = blocks.count};
}

static rpc::LocalBlocks::Memory memory_of(std::span<const std::byte> local) {
  return {{.data = const_cast<std::byte*>(local.data()), .num_bytes = local.size()}};
}

static rpc::RemoteBlocks::Memory memory_of(const Remote& remote) {
  return {.memory = remote.memory(), .offset = remote.offset(), .num_bytes = remote.num_bytes()};
}

static Result<Plan> make_plan(Plan::Kind kind, const std::shared_ptr<rpc::Connection>& connection,
                              Result<rpc::LocalBlocks> here, Result<rpc::RemoteBlocks> there) {
  if (!here.ok()) return std::move(here.status());
  if (!there.ok()) return std::move(there.status());
  Result<rpc::TransferPlan> plan = rpc::TransferPlan::make(std::move(here).value(), std::move(there).value());
  if (!plan.ok()) return std::move(plan.status());
  return Plan(kind, connection, std::make_shared<const rpc::TransferPlan>(std::move(plan).value()));
}

static Result<Plan> plan_layouts(Plan::Kind kind, const std::shared_ptr<rpc::Connection>& connection,
                                 const std::pair<std::span<const std::byte>, Blocks>& local,
                                 const std::pair<Remote, Blocks>& remote) {
  AXON_TRY(check_remote(connection, remote.first));
  return make_plan(kind, connection, rpc::LocalBlocks::laid_out(memory_of(local.first), layout_of(local.second)),
                   rpc::RemoteBlocks::laid_out(memory_of(remote.first), layout_of(remote.second)));
}

static std::vector<rpc::BlockRow> rows_of(std::span<const BlockRow> table) {
  std::vector<rpc::BlockRow> rows;
  rows.reserve(table.size());
  for (const auto& [memory, offset, num_bytes] : table) rows.push_back({memory, offset, num_bytes});
  return rows;
}

template <typename Byte>
static Result<Plan> plan_tables(Plan::Kind kind, const std::shared_ptr<rpc::Connection>& connection,
                                std::pair<std::span<const std::span<Byte>>, std::span<const BlockRow>> local,
                                std::pair<std::span<const Remote>, std::span<const BlockRow>> remote) {
  std::vector<rpc::LocalBlocks::Memory> here;
  for (const std::span<Byte> memory : local.first) here.push_back(memory_of(memory));
  std::vector<rpc::RemoteBlocks::Memory> there;
  for (const Remote& memory : remote.first) {
    AXON_TRY(check_remote(connection, memory));
    there.push_back(memory_of(memory));
  }
  return make_plan(kind, connection, rpc::LocalBlocks::listed(here, rows_of(local.second)),
                   rpc::RemoteBlocks::listed(there, rows_of(remote.second)));
}

Result<Plan> Peer::plan_read(std::span<std::byte> into, const Blocks& local, const Remote& remote,
                             const Blocks& remote_blocks) const {
  return plan_layouts(Plan::Kind::kRead, connection_, {into, local}, {remote, remote_blocks});
}

Result<Plan> Peer::plan_write(std::span<const std::byte> source, const Blocks& local, const Remote& remote,
                              const Blocks& remote_blocks) const {
  return plan_layouts(Plan::Kind::kWrite, connection_, {source, local}, {remote, remote_blocks});
}

Result<Plan> Peer::plan_read(std::span<const std::span<std::byte>> into, std::span<const BlockRow> local,
                             std::span<const Remote> remotes, std::span<const BlockRow> remote_blocks) const {
  return plan_tables<std::byte>(Plan::Kind::kRead, connection_, {into, local}, {remotes, remote_blocks});
}

Result<Plan> Peer::plan_write(std::span<const std::span<const std::byte>> sources, std::span<const BlockRow> local,
                              std::span<const Remote> remotes, std::span<const BlockRow> remote_blocks) const {
  return plan_tables<const std::byte>(Plan::Kind::kWrite, connection_, {sources, local}, {remotes, remote_blocks});
}

static rpc::Transfer::Kind kind_of(Plan::Kind kind) noexcept {
  return kind == Plan::Kind::kRead ? rpc::Transfer::Kind::kRead : rpc::Transfer::Kind::kWrite;
}

Result<Transfer> Plan::post(std::span<const int32_t> local_ids, std::span<const int32_t> remote_ids,
                            TransferOptions options) const {
  auto transfer = transfer_of(kind_of(kind_), connection_);
  AXON_TRY(plan_->add_to(*transfer, local_ids, remote_ids));
  return start(std::move(transfer), std::move(options));
}

Result<TriggeredTransfer> Plan::post_when(const Condition& begin, std::span<const int32_t> local_ids,
                                          std::span<const int32_t> remote_ids, TriggerOptions options) const {
  AXON_TRY(check_notification(options.notification));
  AXON_TRY(plan_->check(local_ids, remote_ids));
  engine::Engine& engine = connection_->engine();
  const auto is_foreign = [&](const Condition& condition) { return &condition.state()->engine() != &engine; };
  if (engine.is_forked()) return engine::Engine::forked();
  if (is_foreign(begin) || (options.then && is_foreign(*options.then))) {
    return Status(ErrorCode::kInvalidArgument, "the condition is of a runtime that ended before this one was opened");
  }
  auto series = std::make_shared<rpc::TriggeredTransfer>(
      kind_of(kind_), connection_, plan_,
      rpc::TriggeredTransfer::Options{.begin = begin.state(),
                                      .then = options.then ? options.then->state() : nullptr,
                                      .local_ids = {local_ids.begin(), local_ids.end()},
                                      .remote_ids = {remote_ids.begin(), remote_ids.end()},
                                      .notification = std::move(options.notification),
                                      .timeout = bounded(options.timeout),
                                      .owner = std::move(options.owner)});
  series->open();
  return TriggeredTransfer(std::move(series));
}

Result<Transfer> Peer::notify(std::string tag, std::chrono::milliseconds timeout) const {
  if (!connection_) return is_empty();
  return start(transfer_of(rpc::Transfer::Kind::kNotify, connection_),
               {.notification = std::move(tag), .timeout = timeout, .owner = {}});
}

}  // namespace axon::library
