#include "rpc/core/one_sided/triggered_transfer.hpp"

#include <utility>

#include "engine/engine.hpp"
#include "rpc/core/connection.hpp"

namespace axon::rpc {

// One of the transfers. Holds a share of the series, which owns the local memory, until nothing moves any more.
class TriggeredTransfer::Run final : public Transfer {
 public:
  explicit Run(std::shared_ptr<TriggeredTransfer> series)
      : Transfer(series->kind_, series->connection_), series_(std::move(series)) {
    notification = series_->options_.notification;
    timeout = series_->options_.timeout;
    series_->num_runs_.fetch_add(1, std::memory_order_relaxed);
    series_->plan_->add_checked_to(*this, series_->options_.local_ids, series_->options_.remote_ids);
  }

 private:
  ~Run() override { series_->num_runs_.fetch_sub(1, std::memory_order_release); }
  void on_finished(const Status& status) noexcept override { series_->on_finished(status); }

  const std::shared_ptr<TriggeredTransfer> series_;
};

// Drops a share of the series without the token: the last one releases the local memory, by a function of the user.
class TriggeredTransfer::DroppedShare final : public engine::Submission {
 public:
  explicit DroppedShare(std::shared_ptr<TriggeredTransfer> series) noexcept : series_(std::move(series)) {}
  void begin() noexcept override {}
  void complete() noexcept override { delete this; }

 private:
  std::shared_ptr<TriggeredTransfer> series_;
};

TriggeredTransfer::TriggeredTransfer(Transfer::Kind kind, std::shared_ptr<Connection> connection,
                                     std::shared_ptr<const TransferPlan> plan, Options options) noexcept
    : kind_(kind), connection_(std::move(connection)), plan_(std::move(plan)), options_(std::move(options)) {}

void TriggeredTransfer::open() noexcept {
  engine().exclusively([this] {
    num_started_ = options_.begin->num_set();
    is_open_ = true;
    options_.begin->add(*this);
    start_next();  // finds that the condition has ended
  });
}

void TriggeredTransfer::close() noexcept {
  if (engine().is_forked()) return;
  engine().exclusively([this] {
    is_open_ = false;
    unlink();
    if (run_.get() != nullptr) connection_->one_sided().initiator().cancel(*run_);
  });
}

Status TriggeredTransfer::status() const {
  const std::lock_guard lock(mutex_);
  return status_.clone();
}

void TriggeredTransfer::start_next() noexcept {
  if (!is_open_ || run_.get() != nullptr) return;
  const bool has_ended = options_.begin->has_ended();  // first: what was set before the end counts
  if (options_.begin->num_set_beyond(num_started_) == 0) {
    if (!has_ended) return;
    is_open_ = false;
    return fail(options_.begin->status());
  }
  ++num_started_;
  self_ = shared_from_this();
  run_ = Counted<Transfer>::adopt(*new Run(self_));
  run_->start_now();
}

void TriggeredTransfer::fail(const Status& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = why.clone();
  }
  has_failed_.store(true);
  if (options_.then != nullptr) options_.then->end(why.clone());
}

void TriggeredTransfer::on_finished(const Status& status) noexcept {
  if (status.ok()) {
    num_finished_.fetch_add(1, std::memory_order_release);
    if (options_.then != nullptr) options_.then->set();
  } else {
    fail(status);
  }
  engine().submit_after_completion(*this);
}

void TriggeredTransfer::begin() noexcept {
  std::shared_ptr<TriggeredTransfer> self = std::move(self_);
  is_open_ = is_open_ && !has_failed_.load();
  run_ = {};
  start_next();
  if (run_.get() == nullptr) engine().post(*new DroppedShare(std::move(self)));
}

}  // namespace axon::rpc
