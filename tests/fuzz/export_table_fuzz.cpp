// Fuzzes a peer's export table, read from its memory while the peer may write anything there at any time.
#include "fuzz.hpp"
#include "ipc/registrations/export_table.hpp"

namespace axon::ipc {
namespace {

// Each read returns the next bytes of the input.
class ChangingMemory final : public PeerMemory {
 public:
  explicit ChangingMemory(Input& input) noexcept : input_(input) {}

  Status read(uint64_t, std::span<std::byte> bytes) const override {
    if (input_.is_over()) return {ErrorCode::kPeerLost, "gone"};
    for (std::byte& byte : bytes) byte = input_.take<std::byte>();
    return Status();
  }

 private:
  Input& input_;
};

void check(std::span<const std::byte> bytes) {
  Result<std::vector<RegistrationRecord>> records = decode_records(bytes);
  if (!records.ok()) return;
  for (const RegistrationRecord& record : records.value()) {
    CHECK(record.number != 0 && record.number <= kLastRegistration);
    uint64_t num_bytes = record.extents.empty() ? record.num_bytes : 0;
    for (const RegistrationExtent& extent : record.extents) num_bytes += extent.num_bytes;
    CHECK(num_bytes == record.num_bytes && num_bytes <= kMostRegistrationBytes);
  }
  Result<std::vector<RegistrationRecord>> again = decode_records(encode(records.value()));
  CHECK(again.ok() && again.value() == records.value());
}

}  // namespace
}  // namespace axon::ipc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace axon::ipc;
  axon::Input input(data, num_bytes);
  if (input.take<uint8_t>() % 2 == 0) {
    check(std::as_bytes(input.rest()));
    return 0;
  }
  const ChangingMemory memory(input);
  axon::Result<std::optional<ExportTableContent>> content =
      read_export_table(memory, {.address = 4096, .incarnation = 0});
  if (content.ok() && content.value()) check(content.value()->bytes);
  return 0;
}
