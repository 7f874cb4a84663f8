// One-sided transfers for Python: regions, remote memory and transfers.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <vector>

#include "rpc/core/one_sided/one_sided.hpp"
#include "rpc/python/device_transfers.hpp"
#include "rpc/python/python_call.hpp"

namespace axon::rpc_python {

// A transfer whose end Python learns of through a call that is never sent: it has what futures need.
class PythonTransfer final : public rpc::Transfer {
 public:
  PythonTransfer(Kind kind, const std::shared_ptr<rpc::Connection>& connection)
      : Transfer(kind, connection), call_(rpc::Counted<PythonCall>::adopt(*new PythonCall(*connection))) {
    call_->answer = rpc::Call::Answer::kNone;
  }

  const rpc::Counted<PythonCall>& call() const noexcept { return call_; }

 private:
  void on_finished(const Status& status) noexcept override { call_->fail_unstarted(status.clone()); }

  const rpc::Counted<PythonCall> call_;
};

// Sets the timeout, and the notification unless it is None. Throws ValueError if that is too long.
void set_options(rpc::Transfer& transfer, const pybind11::object& notification, double timeout_s);
// Returns the stream of a tuple (stream_id, device_index, device_type), or nothing for None.
std::optional<c10::Stream> stream_in(const pybind11::object& numbers);
// Throws ValueError unless the stream is of this GPU.
void require_stream_of(c10::Stream stream, c10::DeviceIndex gpu);
// Adds blocks that GPUs move, without the GIL. The transfer must be started then. Throws ValueError if the stream is
// not of the GPU of these blocks.
void post_to_devices(PythonTransfer& transfer, const std::vector<DeviceBlock>& blocks, std::vector<Owner> owners,
                     std::optional<c10::Stream> stream);
// Python gets it as a number, which it compares faster than an enum.
enum class TransferState : uint8_t { kUnderWay, kDone, kFailed };
TransferState state_of(const PythonTransfer& transfer) noexcept;
// Drives the engine if the transfer is under way, for programs that ask again and again.
TransferState poll_transfer(PythonTransfer& transfer);
// Starts the transfer without the GIL.
void start_transfer(PythonTransfer& transfer);

void bind_one_sided(pybind11::module_& module);

}  // namespace axon::rpc_python
