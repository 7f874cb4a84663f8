// The path of an 8-byte all_reduce between two ranks, for tools/count_instructions.py. It is the code that a rank
// executes from the call to its return, when the other rank's message has already arrived. It runs over rings and UCX,
// as between processes of one host, or over UCX alone, as without rings.
//
//   all_reduce_path rings|ucx [num_calls]
#include <array>
#include <cstdlib>
#include <string_view>

#include "cpp/paths.hpp"

namespace axon {
namespace {

using namespace std::chrono_literals;

class AllReduce final : public engine::Operation {
 public:
  AllReduce() {
    arguments.kind = transport::OperationKind::kAllReduce;
    arguments.dtype = DataType::kFloat32;
    arguments.reduction = Reduction::kSum;
    arguments.outputs = {&buffer_, 1};
    num_elements = values_.size();
    timeout = 60s;
  }

 private:
  void on_released() noexcept override {}

  std::array<float, 2> values_{};
  Buffer buffer_{.data = reinterpret_cast<std::byte*>(values_.data()), .num_bytes = sizeof values_};
};

}  // namespace

// callgrind counts the function of this name.
extern "C" __attribute__((noinline)) void counted_call(engine::Communicator& communicator,
                                                       engine::Operation& operation) {
  communicator.start(operation);
  communicator.wait(operation, Clock::now() + 60s);
}

static void require_path(engine::Communicator& communicator, transport::RingUse use) {
  const std::vector<transport::Lane> lanes = communicator.path_to(1 - communicator.rank()).value().lanes;
  const bool is_ring = !lanes.empty() && lanes.front().name == "ring";
  require(is_ring == (use == transport::RingUse::kAlways), "messages take another path than the one to count");
}

static void run(transport::RingUse use, int num_calls) {
  const std::array engines{make_engine(use), make_engine(use)};
  const std::array own{engines[0]->make_address(), engines[1]->make_address()};
  const std::vector<engine::PeerAddress> addresses{own[0].address(), own[1].address()};
  std::array<std::unique_ptr<engine::Communicator>, 2> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks[rank] = std::move(engines[rank]->form({.name = "path", .rank = rank, .addresses = addresses})).value();
  }
  for (int call = 0; call < num_calls; ++call) {
    AllReduce here;
    AllReduce there;
    ranks[1]->start(there);
    // The first calls make the connections, which needs both ranks.
    static constexpr int kNumWarm = 20;
    if (call == kNumWarm) {
      for (const auto& rank : ranks) require_path(*rank, use);
    }
    if (call < kNumWarm) {
      ranks[0]->start(here);
      while (!ranks[0]->wait(here, Clock::now() + 1ms) || !ranks[1]->wait(there, Clock::now() + 1ms)) {
      }
    } else {
      counted_call(*ranks[0], here);
      require(ranks[1]->wait(there, Clock::now() + 60s), "the other rank does not finish");
    }
    require(here.status().ok() && there.status().ok(), "an all_reduce has failed");
  }
}

}  // namespace axon

int main(int argc, char** argv) {
  const std::string_view path = argc > 1 ? argv[1] : "";
  axon::require(path == "rings" || path == "ucx", "all_reduce_path rings|ucx [num_calls]");
  axon::run(path == "rings" ? axon::transport::RingUse::kAlways : axon::transport::RingUse::kNever,
            argc > 2 ? std::atoi(argv[2]) : 1000);
}
