#include "transport/loopback/mailbox.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace axon::transport {

// Each process draws its own random numbers, so that its faults depend on its own calls only.
Mailbox::Mailbox(uint64_t seed, uint32_t process)
    : random(seed * 0x9E3779B97F4A7C15u + process), event_fd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (event_fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}

Mailbox::~Mailbox() {
  close(event_fd);
}

bool Mailbox::chance(double probability) {
  return probability > 0 && std::uniform_real_distribution<>(0, 1)(random) < probability;
}

void Mailbox::put(Parcel parcel, const FaultPlan& plan, uint64_t number) {
  if (dead || closed) return;
  auto place = parcels.end();
  if (std::holds_alternative<ArrivingMessage>(parcel.content)) {
    parcel.due = num_rounds;
    if (chance(plan.delay)) parcel.due += random() % static_cast<uint64_t>(plan.longest_delay + 1);
    const auto hold = std::ranges::find(plan.holds, number, &FaultPlan::Hold::send);
    if (hold != plan.holds.end()) parcel.due += hold->num_rounds;
    if (chance(plan.reorder)) place = parcels.begin() + static_cast<ptrdiff_t>(random() % (parcels.size() + 1));
  }
  parcels.insert(place, std::move(parcel));
  if (std::exchange(armed, false)) ring();
}

void Mailbox::ring() {
  rung = true;
  const uint64_t one = 1;
  // Fails only if the descriptor is readable already.
  [[maybe_unused]] const ssize_t written = write(event_fd, &one, sizeof one);
}

void Mailbox::silence() {
  if (!std::exchange(rung, false)) return;
  uint64_t rings;
  [[maybe_unused]] const ssize_t num_read = read(event_fd, &rings, sizeof rings);
}

std::deque<Parcel> Mailbox::take_due(size_t at_most) {
  std::deque<Parcel> taken;
  for (auto parcel = parcels.begin(); parcel != parcels.end() && taken.size() < at_most;) {
    if (parcel->due > num_rounds) {
      ++parcel;
      continue;
    }
    taken.push_back(std::move(*parcel));
    parcel = parcels.erase(parcel);
  }
  return taken;
}

std::vector<const WaitingSend*> Mailbox::waiting_sends() const {
  std::vector<const WaitingSend*> sends;
  for (const Parcel& parcel : parcels) {
    const auto* message = std::get_if<ArrivingMessage>(&parcel.content);
    if (message != nullptr && message->waiting) sends.push_back(message->waiting.get());
  }
  for (const auto& [handle, waiting] : held) sends.push_back(waiting.get());
  return sends;
}

void Mailbox::clear() noexcept {
  parcels.clear();
  held.clear();
}

}  // namespace axon::transport
