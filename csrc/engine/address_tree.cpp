#include "engine/address_tree.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace axon::engine {

using namespace std::chrono_literals;

static constexpr int kNumChildren = 4;

// is_over() is a call to the store, which all ranks that wait make.
static constexpr std::chrono::milliseconds kTimeBetweenQuestions = 1s;

// A message to a neighbour, or from it.
class AddressTree::Transfer final : public Operation {
 public:
  Transfer(Direction which, int other, std::vector<uint8_t> content, std::chrono::milliseconds limit)
      : bytes(std::move(content)) {
    arguments.kind = transport::OperationKind::kPointToPoint;
    arguments.dtype = DataType::kByte;
    direction = which;
    peer = other;
    timeout = limit;
    num_elements = bytes.size();
    shape.num_dimensions = 1;
    shape.sizes[0] = static_cast<int64_t>(bytes.size());
    output_ = {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()};
    input_ = output_;
    if (which == Direction::kSend) {
      arguments.inputs = {&input_, 1};
    } else {
      arguments.outputs = {&output_, 1};
    }
  }

  std::vector<uint8_t> bytes;
  std::shared_ptr<Transfer> self;  // the engine's share, until it no longer uses the memory; the other is its creator's

 private:
  void on_released() noexcept override { const std::shared_ptr<Transfer> may_go = std::move(self); }

  Buffer output_;
  ConstBuffer input_;
};

std::vector<int> AddressTree::neighbours_of(int rank, int size) {
  std::vector<int> neighbours;
  if (rank > 0) neighbours.push_back((rank - 1) / kNumChildren);
  const int first_child = kNumChildren * rank + 1;
  for (int child = first_child; child < std::min(first_child + kNumChildren, size); ++child) {
    neighbours.push_back(child);
  }
  return neighbours;
}

// The child's rank is the number of the instance, so that both sides of a link derive the same keys.
AddressTree::AddressTree(Engine& engine, Place place, std::function<bool()> is_over)
    : engine_(engine),
      place_(std::move(place)),
      is_over_(std::move(is_over)),
      standing_(engine.make_standing_address()) {
  for (const int neighbour : neighbours_of(place_.rank, place_.size)) {
    const auto child = static_cast<uint64_t>(std::max(neighbour, place_.rank));
    links_.push_back({.neighbour = neighbour,
                      .is_child = neighbour > place_.rank,
                      .own = std::unique_ptr<const OwnAddress>(new OwnAddress(standing_.in_instance(child))),
                      .communicator = nullptr});
  }
}

AddressTree::~AddressTree() = default;

Status AddressTree::connect(const std::vector<PeerAddress>& addresses) {
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[i];
    const int child = std::max(link.neighbour, place_.rank);
    const PeerAddress other = addresses[i].in_instance(static_cast<uint64_t>(child));
    GroupSpecification pair{
        .name = place_.group + ", addresses of rank " + std::to_string(child),
        .rank = link.is_child ? 0 : 1,
        .addresses = link.is_child ? std::vector{link.own->address(), other} : std::vector{other, link.own->address()}};
    Result<std::unique_ptr<Communicator>> formed = engine_.form(std::move(pair));
    if (!formed.ok()) {
      return {formed.status().code(),
              "it cannot connect to rank " + std::to_string(link.neighbour) + ": " + formed.status().message()};
    }
    link.communicator = std::move(formed).value();
  }
  return {};
}

std::shared_ptr<AddressTree::Transfer> AddressTree::start(Link& link, Direction direction, std::vector<uint8_t> bytes) {
  // await() ends earlier, and says for which rank it has waited
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(place_.deadline - std::chrono::steady_clock::now());
  auto transfer = std::make_shared<Transfer>(direction, link.is_child ? 1 : 0, std::move(bytes),
                                             std::max<std::chrono::milliseconds>(limit, 0ms) + 1min);
  transfer->self = transfer;
  link.communicator->start(*transfer);
  return transfer;
}

// The length goes first, as addresses differ in length.
std::vector<std::shared_ptr<AddressTree::Transfer>> AddressTree::start_send(Link& link,
                                                                            const std::vector<uint8_t>& bytes) {
  const uint64_t num_bytes = bytes.size();
  std::vector<uint8_t> length(sizeof num_bytes);
  std::memcpy(length.data(), &num_bytes, sizeof num_bytes);
  std::vector<std::shared_ptr<Transfer>> transfers{start(link, Direction::kSend, std::move(length))};
  if (num_bytes != 0) transfers.push_back(start(link, Direction::kSend, bytes));
  return transfers;
}

Status AddressTree::await(Link& link, Transfer& transfer) {
  const std::string other = "rank " + std::to_string(link.neighbour);
  while (true) {
    const auto now = std::chrono::steady_clock::now();
    if (link.communicator->wait(transfer, std::min(place_.deadline, now + kTimeBetweenQuestions))) break;
    if (std::chrono::steady_clock::now() >= place_.deadline)
      return {ErrorCode::kTimeout, "it waited for " + other + " until its timeout"};
    if (is_over_()) return {ErrorCode::kCancelled, "other ranks have given up"};
  }
  if (transfer.status().ok()) return {};
  return {transfer.status().code(), "it has lost " + other + ": " + transfer.status().message()};
}

Status AddressTree::send(const std::vector<Link*>& links, const std::vector<uint8_t>& bytes) {
  std::vector<std::pair<Link*, std::shared_ptr<Transfer>>> sends;
  for (Link* link : links) {
    for (auto& transfer : start_send(*link, bytes)) sends.emplace_back(link, std::move(transfer));
  }
  for (const auto& [link, transfer] : sends) AXON_TRY(await(*link, *transfer));
  return {};
}

Result<std::vector<uint8_t>> AddressTree::receive(Link& link) {
  uint64_t num_bytes = 0;
  const auto length = start(link, Direction::kReceive, std::vector<uint8_t>(sizeof num_bytes));
  AXON_TRY(await(link, *length));
  std::memcpy(&num_bytes, length->bytes.data(), sizeof num_bytes);
  if (num_bytes == 0) return std::vector<uint8_t>();
  const auto content = start(link, Direction::kReceive, std::vector<uint8_t>(num_bytes));
  AXON_TRY(await(link, *content));
  return std::move(content->bytes);
}

Result<std::vector<uint8_t>> AddressTree::gather(std::vector<uint8_t> own) {
  for (Link& link : links_) {
    if (!link.is_child) continue;
    const Result<std::vector<uint8_t>> below = receive(link);
    if (!below.ok()) return below.status().clone();
    own.insert(own.end(), below.value().begin(), below.value().end());
  }
  if (Link* const up = parent()) AXON_TRY(send({up}, own));
  return own;
}

Result<std::vector<uint8_t>> AddressTree::broadcast(std::vector<uint8_t> bytes) {
  if (Link* const up = parent()) {
    Result<std::vector<uint8_t>> from_above = receive(*up);
    if (!from_above.ok()) return from_above;
    bytes = std::move(from_above).value();
  }
  std::vector<Link*> children;
  for (Link& link : links_) {
    if (link.is_child) children.push_back(&link);
  }
  AXON_TRY(send(children, bytes));
  return bytes;
}

}  // namespace axon::engine
