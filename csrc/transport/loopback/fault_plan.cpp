#include "transport/loopback/fault_plan.hpp"

#include <sstream>

namespace axon::transport {

std::string to_string(const FaultPlan& plan) {
  std::ostringstream out;
  out << "seed " << plan.seed << ", eager up to " << plan.largest_eager_num_bytes << " bytes, mailboxes of "
      << plan.mailbox_capacity << ", pending " << plan.pending << ", delay " << plan.delay << " of up to "
      << plan.longest_delay << ", reorder " << plan.reorder << ", failing send " << plan.failing_send
      << ", failing fetch " << plan.failing_fetch << (plan.fails_late ? ", late" : "") << ", corrupting send "
      << plan.corrupting_send;
  for (const FaultPlan::Hold& hold : plan.holds) {
    out << ", message " << hold.send << " held back for " << hold.num_rounds << " rounds";
  }
  for (const FaultPlan::Kill& kill : plan.kills) {
    out << ", process " << kill.process << " dies at step " << kill.step;
  }
  return out.str();
}

}  // namespace axon::transport
