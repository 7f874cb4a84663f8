#include "stream/segments/segments.hpp"

namespace axon {

struct Segments::Parts {};

Segments::Segments(std::unique_ptr<Parts> parts) noexcept : parts_(std::move(parts)) {}
Segments::~Segments() = default;

Result<std::unique_ptr<Segments>> Segments::create(int, uint64_t) {
  return std::unique_ptr<Segments>(new Segments(std::make_unique<Parts>()));
}
SegmentPlace Segments::locate(const void*, size_t) {
  return {};
}
const SegmentEntry* Segments::follow(const DeviceCard&, const PeerProcess*) {
  return nullptr;
}
uint64_t Segments::board_address() const noexcept {
  return 0;
}
bool Segments::has_retired() const noexcept {
  return false;
}
size_t Segments::close_retired() {
  return 0;
}
SegmentCounts Segments::counts() const {
  return {};
}

}  // namespace axon
