#include "axon/destinations.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace axon::library {

Destinations::Destinations(rpc::Inbound& announced)
    : announced_(announced),
      buffers_(announced.tensors().size(), &memory_),
      owners_(announced.tensors().size(), &memory_) {}

Status Destinations::ask(const Ask& where) noexcept {
  try {
    Announced announced(*this);
    where(announced);
    if (overlap()) {
      fail(ErrorCode::kInvalidArgument, "receive_into: memory of tensors overlaps; use separate memory for each");
    }
  } catch (const std::exception& error) {
    fail(ErrorCode::kInternal, error.what());
  } catch (...) {
    fail(ErrorCode::kInternal, "an exception that does not derive from std::exception");
  }
  return std::move(failure_);
}

bool Destinations::has(size_t index) {
  const size_t num_tensors = buffers_.size();
  if (index < num_tensors) return true;
  fail(ErrorCode::kInvalidArgument, "receive_into: index is " + std::to_string(index) + "; allowed: up to " +
                                        std::to_string(num_tensors - 1) + ", the last tensor of the message");
  return false;
}

void Destinations::give(size_t index, std::span<std::byte> memory, Owner owner) {
  if (!has(index)) return;
  const size_t num_bytes = announced_.tensors()[index].data.num_bytes;
  if (memory.size() != num_bytes) {
    return fail(ErrorCode::kInvalidArgument,
                "receive_into: tensor " + std::to_string(index) + " is given " + std::to_string(memory.size()) +
                    " bytes; allowed: " + std::to_string(num_bytes) + ", the size of the received tensor");
  }
  buffers_[index] = {memory.data(), memory.size()};
  owners_[index] = std::move(owner);
}

void Destinations::fail(ErrorCode code, std::string why) {
  if (failure_.ok()) failure_ = Status(code, std::move(why));
}

bool Destinations::overlap() {
  std::pmr::vector<std::span<const std::byte>> given(&memory_);
  given.reserve(buffers_.size());
  for (const Buffer& buffer : buffers_) {
    if (buffer.num_bytes != 0) given.emplace_back(buffer.data, buffer.num_bytes);
  }
  std::ranges::sort(given, {}, [](const auto& memory) { return memory.data(); });
  const auto overlaps = [](const auto& left, const auto& right) { return left.data() + left.size() > right.data(); };
  return std::ranges::adjacent_find(given, overlaps) != given.end();
}

}  // namespace axon::library
