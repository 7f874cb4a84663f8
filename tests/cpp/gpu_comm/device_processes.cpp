#include "gpu_comm/device_processes.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>

#include "base/host_id.hpp"
#include "transport/ucx/ucx.hpp"

namespace axon::testing {

int count_devices() {
  const pid_t child = fork();
  if (child == 0) _exit(cuda::num_devices());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

class SharedAddresses {
 public:
  SharedAddresses()
      : notes_(static_cast<Note*>(mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (notes_ == MAP_FAILED) throw std::runtime_error("no memory to share");
  }
  ~SharedAddresses() { munmap(notes_, kSize); }
  SharedAddresses(const SharedAddresses&) = delete;
  SharedAddresses& operator=(const SharedAddresses&) = delete;

  void write(int rank, const std::vector<uint8_t>& bytes) {
    if (bytes.size() > kLongest) throw std::runtime_error("note of " + std::to_string(bytes.size()) + " bytes");
    std::memcpy(notes_[rank].bytes, bytes.data(), bytes.size());
    notes_[rank].num_bytes = bytes.size();
  }
  std::vector<uint8_t> read(int rank) const {
    return {notes_[rank].bytes, notes_[rank].bytes + notes_[rank].num_bytes};
  }

 private:
  static constexpr size_t kLongest = 8192;
  struct Note {
    size_t num_bytes;
    uint8_t bytes[kLongest];
  };
  static constexpr size_t kSize = 8 * sizeof(Note);

  Note* notes_;
};

// Engines with different host numbers take each other for processes of other hosts.
static std::unique_ptr<engine::Engine> make_engine(int host) {
  auto transport = require(transport::open_ucx_transport({.settings = {{"TLS", "^sysv,cuda"}}}));
  return std::make_unique<engine::Engine>(std::move(transport), this_host() + static_cast<uint64_t>(host),
                                          collectives::AlgorithmOverrides());
}

static cuda::Stream make_stream(int device) {
  require(cudaSetDevice(device));
  return require(cuda::Stream::create());
}

DeviceProcess::DeviceProcess(int rank, Layout layout, transport::ProcessGroup& processes, SharedAddresses& addresses)
    : rank_(rank),
      layout_(layout),
      processes_(processes),
      addresses_(addresses),
      stream_(make_stream(layout.devices()[static_cast<size_t>(rank)])),
      engine_(make_engine(host_of(rank))) {}

Party DeviceProcess::form(const std::string& name, std::chrono::milliseconds timeout) {
  const engine::OwnAddress own = engine_->make_address();
  addresses_.write(rank_, own.address().encode());
  barrier();
  engine::GroupSpecification specification{.name = name, .rank = rank_, .addresses = {}};
  for (int rank = 0; rank < size(); ++rank)
    specification.addresses.push_back(require(engine::PeerAddress::decode(addresses_.read(rank))));
  barrier();  // before a rank writes its next address
  Party party{.communicator = require(engine_->form(std::move(specification))), .group = nullptr};
  party.group = require(gpu_comm::DeviceGroup::form(*party.communicator, device(), timeout));
  return party;
}

void on_devices(Layout layout, const std::function<void(DeviceProcess& self)>& body) {
  SharedAddresses addresses;
  transport::ProcessGroup processes(layout.num_ranks, [&](int rank, transport::ProcessGroup& group) {
    try {
      DeviceProcess self(rank, layout, group, addresses);
      body(self);
      self.barrier();  // no rank exits while others may still communicate with it
    } catch (const std::exception& failure) {
      ADD_FAILURE() << "rank " << rank << ": " << failure.what();
    }
  });
  EXPECT_TRUE(processes.wait(std::chrono::seconds(60))) << "a rank has failed (above), crashed, or not ended in time";
}

std::unique_ptr<DeviceCall> DeviceCall::collective(transport::OperationKind kind, DataType dtype,
                                                   uint64_t num_elements) {
  auto call = std::make_unique<DeviceCall>();
  call->arguments.kind = kind;
  call->arguments.dtype = dtype;
  call->num_elements = num_elements;
  call->timeout = std::chrono::seconds(20);
  return call;
}

std::unique_ptr<DeviceCall> DeviceCall::message(engine::Direction direction, int peer, const DeviceBuffer& buffer,
                                                uint32_t tag) {
  auto call = collective(transport::OperationKind::kPointToPoint, DataType::kByte, buffer.num_bytes());
  call->direction = direction;
  call->peer = peer;
  call->tag = tag;
  if (direction == engine::Direction::kSend) {
    call->read(buffer.data(), buffer.num_bytes());
  } else {
    call->write(buffer.data(), buffer.num_bytes());
  }
  return call;
}

DeviceCall& DeviceCall::reduce_with(Reduction reduction) {
  arguments.reduction = reduction;
  return *this;
}

DeviceCall& DeviceCall::rooted_at(int root) {
  arguments.root = root;
  return *this;
}

DeviceCall& DeviceCall::read(const std::byte* data, size_t num_bytes) {
  inputs_.push_back({.data = data, .num_bytes = num_bytes, .kind = MemoryKind::kCuda});
  arguments.inputs = inputs_;
  return *this;
}

DeviceCall& DeviceCall::write(std::byte* data, size_t num_bytes) {
  outputs_.push_back({.data = data, .num_bytes = num_bytes, .kind = MemoryKind::kCuda});
  arguments.outputs = outputs_;
  return *this;
}

}  // namespace axon::testing
