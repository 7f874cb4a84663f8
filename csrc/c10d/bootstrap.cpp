#include "c10d/bootstrap.hpp"

#include "base/log.hpp"
#include "base/trace.hpp"
#include "c10d/errors.hpp"
#include "engine/instance.hpp"

namespace axon::c10d_backend {

static void name_process(const Membership& membership) {
  log::set_rank(membership.global_rank);
  if (Status opened = trace::open(membership.global_rank); !opened.ok()) throw_failure(opened);
}

std::shared_ptr<engine::Communicator> join(c10d::Store& store, const Membership& membership) {
  name_process(membership);
  const engine::EngineHold hold = engine::hold_instance();
  engine::Engine& engine = hold.engine();
  const Status room = engine.check_room_for_group(static_cast<size_t>(membership.size));
  if (!room.ok()) {
    const std::string whose = "[rank " + std::to_string(membership.rank) + " of group '" + membership.group + "'] ";
    throw_failure(Status(room.code(), whose + room.message()));
  }
  Rendezvous rendezvous(store, membership, engine);
  Result<std::unique_ptr<engine::Communicator>> formed =
      engine.form({.name = membership.group, .rank = membership.rank, .addresses = rendezvous.meet()});
  if (!formed.ok()) throw_failure(formed.status());
  return std::move(formed).value();
}

std::shared_ptr<engine::Communicator> form_without_members(const Membership& membership) {
  name_process(membership);
  const engine::EngineHold hold = engine::hold_instance();
  const engine::OwnAddress own = hold.engine().make_address();
  Result<std::unique_ptr<engine::Communicator>> formed =
      hold.engine().form({.name = membership.group, .rank = 0, .addresses = {own.address()}});
  if (!formed.ok()) throw_failure(formed.status());
  formed.value()->abort("the group was made with enable_reconfigure=True and has no members until reconfigure()");
  return std::move(formed).value();
}

}  // namespace axon::c10d_backend
