#include "rpc/core/inbound.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "rpc/core/header_frame_reader.hpp"

namespace axon::rpc {

Inbound::Inbound() noexcept : transport::Completion{&Inbound::on_done} {}

Inbound::~Inbound() {
  drop_early();
}

void Inbound::open(engine::Engine& engine, Listener& listener, const Limits& limits) noexcept {
  drop_early();
  engine_ = &engine;
  listener_ = &listener;
  limits_ = limits;
  destinations_ = TensorDestinations::kBlocks;
  state_ = State::kEmpty;
  num_missing_ = 0;
  give_back();
}

void Inbound::give_back() noexcept {
  if (bytes_.capacity() > kMostHeaderKept) bytes_ = {};
  name_ = {};
  values_ = {};
  tensors_.clear();
}

void Inbound::on_header_frame(const transport::Payload& payload) noexcept {
  if (payload.num_bytes > limits_.max_message_num_bytes) {
    drop(payload);
    return fail(ErrorCode::kResourceExhausted, "the header frame exceeds max_message_num_bytes");
  }
  try {
    bytes_.resize(payload.num_bytes);
  } catch (const std::bad_alloc&) {
    drop(payload);
    return fail(ErrorCode::kResourceExhausted, "out of memory for the header frame of a message");
  }
  if (payload.rendezvous != nullptr) {
    state_ = State::kFetchingHeaderFrame;
    return fetch(payload.rendezvous, {bytes_.data(), bytes_.size()});
  }
  if (!bytes_.empty()) std::memcpy(bytes_.data(), payload.bytes, payload.num_bytes);
  understand();
}

// Parses the header frame.
void Inbound::understand() noexcept {
  HeaderFrame header_frame;
  if (const char* fault = read_header_frame(bytes_, limits_.max_message_num_bytes, header_frame, tensors_)) {
    return fail(ErrorCode::kTransport, fault);
  }
  name_ = header_frame.name;
  values_ = header_frame.values;
  num_missing_ = header_frame.num_payload_frames;
  const auto is_exposed = [](const Tensor& tensor) { return tensor.location == TensorLocation::kExposed; };
  if (!limits_.accepts_exposed && std::ranges::any_of(tensors_, is_exposed)) {
    return fail(ErrorCode::kTransport, "the peer exposed a tensor, but this runtime does not accept exposed tensors");
  }
  state_ = State::kAsking;
  if (!tensors_.empty()) listener_->on_announced(*this);  // the listener may set the destinations, or end the message
  if (state_ != State::kAsking || destinations_ != TensorDestinations::kBlocks) return;
  num_missing_ != 0 ? allocate_blocks() : receive_early();
}

void Inbound::allocate_blocks() noexcept {
  for (Tensor& tensor : tensors_) {
    if (!give_block(tensor)) return;
  }
  receive_early();
}

// Allocates memory for a payload frame; data in the header frame stays there. Returns false if there is no memory,
// after failing the message.
bool Inbound::give_block(Tensor& tensor) noexcept {
  if (tensor.location != TensorLocation::kPayloadFrame) return true;
  tensor.host_buffer = HostBuffer::take(tensor.data.num_bytes);
  tensor.data.data = tensor.host_buffer.data();
  if (!tensor.host_buffer) fail(ErrorCode::kResourceExhausted, "out of memory for the tensors of a message");
  return static_cast<bool>(tensor.host_buffer);
}

void Inbound::accept(std::span<const Buffer> buffers, std::span<Owner> owners) noexcept {
  if (state_ != State::kAsking) return;  // it has failed in the meantime
  has_owners_ = !owners.empty();
  for (size_t i = 0; i < owners.size(); ++i) tensors_[i].owner = std::move(owners[i]);
  for (size_t i = 0; i < tensors_.size(); ++i) {
    Tensor& tensor = tensors_[i];
    if (buffers[i].data == nullptr) {
      if (!give_block(tensor)) return;
      continue;
    }
    if (tensor.location == TensorLocation::kHeaderFrame && tensor.data.num_bytes != 0) {
      std::memcpy(buffers[i].data, tensor.data.data, tensor.data.num_bytes);
    }
    tensor.data.data = buffers[i].data;
  }
  receive_early();
}

void Inbound::let_go() noexcept {
  for (Tensor& tensor : tensors_) tensor.owner = Owner();
  has_owners_ = false;
}

// The destinations are known: receives early payload frames, and all later ones.
void Inbound::receive_early() noexcept {
  state_ = State::kReceiving;
  while (state_ == State::kReceiving && !early_.empty()) {
    messaging::Unexpected& message = *early_.pop_front();  // taken out first, because a callback may drop the rest
    --num_early_;
    place(message.header.as<transport::CallHeader>().tensor, message.payload);
    release_early(message);
  }
  complete_if_all_arrived();
}

void Inbound::release_early(messaging::Unexpected& message) noexcept {
  *limits_.num_early_bytes -= message.num_bytes_copied();
  release_copy(engine_->messenger().size_class_pool(), message);
}

void Inbound::on_payload_frame(const transport::CallHeader& header, const transport::Payload& payload) noexcept {
  switch (state_) {
    case State::kReceiving:
      return place(header.tensor, payload);
    case State::kComplete:
    case State::kClosed:
      return drop(payload);
    default:
      break;
  }
  const size_t num_bytes = payload.rendezvous == nullptr ? payload.num_bytes : 0;
  if (num_early_ >= limits_.max_early_payload_frames ||
      *limits_.num_early_bytes + num_bytes > limits_.max_early_num_bytes) {
    drop(payload);
    return fail(ErrorCode::kResourceExhausted,
                "payload frames that arrived before their destination was known exceed the limit");
  }
  early_.push_back(messaging::hold_copy(engine_->messenger().size_class_pool(), header, payload));
  *limits_.num_early_bytes += num_bytes;
  ++num_early_;
}

// Returns whether the payload may be the tensor's payload frame.
static bool describes(const Inbound::Tensor& tensor, const transport::Payload& payload) noexcept {
  if (tensor.begun) return false;
  switch (tensor.location) {
    case TensorLocation::kHeaderFrame:
      return false;
    case TensorLocation::kPayloadFrame:
      return payload.num_bytes == tensor.data.num_bytes;
    case TensorLocation::kExposed:
      return payload.rendezvous != nullptr && payload.num_bytes == kExposedFrameNumBytes;
  }
  return false;
}

void Inbound::place(uint32_t index, const transport::Payload& payload) noexcept {
  if (index >= tensors_.size() || !describes(tensors_[index], payload)) {
    drop(payload);
    return fail(ErrorCode::kTransport, "a payload frame arrived that its header frame does not describe");
  }
  Tensor& tensor = tensors_[index];
  tensor.begun = true;
  if (tensor.location == TensorLocation::kExposed) {
    tensor.exposure = Exposure(*engine_, payload.rendezvous);
  } else if (payload.rendezvous != nullptr) {
    return fetch(payload.rendezvous, tensor.data);
  } else {
    std::memcpy(tensor.data.data, payload.bytes, payload.num_bytes);
  }
  --num_missing_;
  complete_if_all_arrived();
}

void Inbound::complete_if_all_arrived() noexcept {
  if (state_ != State::kReceiving || num_missing_ != 0) return;
  state_ = State::kComplete;
  listener_->on_complete(*this);
}

void Inbound::fetch(void* rendezvous, Buffer into) noexcept {
  ++num_moving_;
  if (auto fetched = engine_->messenger().transport().fetch(rendezvous, into, *this)) on_moved(std::move(*fetched));
}

void Inbound::on_done(transport::Completion& self, Status status) noexcept {
  static_cast<Inbound&>(self).on_moved(std::move(status));
}

void Inbound::on_moved(Status status) noexcept {
  --num_moving_;
  if (state_ == State::kClosed) return;
  if (!status.ok()) return fail(status.code(), status.message().c_str());
  if (state_ == State::kFetchingHeaderFrame) return understand();
  --num_missing_;
  complete_if_all_arrived();
}

void Inbound::fail(ErrorCode code, const char* why) noexcept {
  if (state_ == State::kClosed) return;
  abandon();
  listener_->on_broken(*this, Status(code, why));
}

void Inbound::abandon() noexcept {
  state_ = State::kClosed;
  drop_early();
  for (Tensor& tensor : tensors_) tensor.exposure = Exposure();
}

void Inbound::drop(const transport::Payload& payload) noexcept {
  messaging::drop_payload(engine_->messenger(), payload);
}

void Inbound::drop_early() noexcept {
  while (messaging::Unexpected* message = early_.front()) {
    drop(message->payload);
    release_early(*message);
  }
  num_early_ = 0;
}

}  // namespace axon::rpc
