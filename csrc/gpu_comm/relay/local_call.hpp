// A collective among the ranks of this host, as a stage of one of the whole group.
//
//   LocalCall call(operation, OperationKind::kAllGather);
//   AXON_TRY(call.launch(group, num_bytes, inputs, outputs, stream));   // one shard for each local index
#pragma once

#include <span>

#include "gpu_comm/device_group.hpp"

namespace axon::gpu_comm {

class LocalCall final : public engine::Operation {
 public:
  LocalCall(const engine::Operation& of, transport::OperationKind kind) noexcept {
    arguments.kind = kind;
    arguments.dtype = of.arguments.dtype;
    timeout = of.timeout;
  }
  ~LocalCall() override = default;

  // `num_bytes`: of all ranks' shards together.
  Status launch(DeviceGroup& group, size_t num_bytes, std::span<const ConstBuffer> inputs,
                std::span<const Buffer> outputs, cuda::StreamView stream) {
    arguments.inputs = inputs;
    arguments.outputs = outputs;
    num_elements = num_bytes / size_of(arguments.dtype);
    return group.launch_local(*this, stream, kernels::Beside::kComputation);
  }

 private:
  void on_released() noexcept override {}
};

}  // namespace axon::gpu_comm
