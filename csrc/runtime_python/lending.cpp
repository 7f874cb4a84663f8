#include "runtime_python/lending.hpp"

#include "runtime/values.hpp"

namespace axon {

void tell_readable_gpus(const std::shared_ptr<Connection>& peer, const std::vector<std::string>& uuids) {
  const auto call = CallPointer::adopt(*new Call);
  call->answer = Call::Answer::kNone;
  call->request.open("axon.lend");
  ValueWriter writer(call->request.bytes());
  writer.array(2);
  writer.array(1);
  writer.array(uuids.size());
  for (const std::string& uuid : uuids) writer.binary(std::as_bytes(std::span(uuid)));
  writer.nothing();
  call->request.seal();
  peer->start(*call);
}

}  // namespace axon
