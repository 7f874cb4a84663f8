// Checks a trigger ring of two entries between the kernels that write to it and its readers, in every interleaving up
// to a number of deviations. Every id is taken once, and those of one stream in their order. A kernel that overwrites
// an entry before it is read loses an id. A kernel that gives up leaves no hole, at which the reader would stop.
//
// The model is sequentially consistent: it does not check the memory orders of either side.
//
// Built again with faults seeded into the code of both sides (AXON_SEEDED); the same programs must find each fault.
#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/sync.hpp"
#include "engine/trigger_ring.hpp"
#include "kernels/trigger_ring.cuh"
#include "programs.hpp"
#include "scheduler.hpp"

namespace axon {
namespace {

using kernels::kNumTriggers;

constexpr model::Duration kLong = std::chrono::seconds(1);  // longer than any program

// Kernels that run one after the other, all of one operation.
struct Stream {
  static constexpr uint32_t kMostKernels = 10;

  uint32_t number;
  uint32_t num_kernels;
  model::Duration longest_wait = kLong;
  uint32_t num_ended = 0;
  uint32_t has_failed = 0;
  uint32_t has_expired = 0;

  uint32_t next_id() const { return number * kMostKernels + num_ended + 1; }
  bool has_sent(uint32_t id) const { return (id - 1) / kMostKernels == number; }
  bool has_ended() const { return num_ended == num_kernels; }
};

// The ring, the device's counts and streams, and the ids that readers have taken.
class World {
 public:
  explicit World(std::vector<Stream> streams, uint32_t num_before = 0)
      : streams_(std::move(streams)),
        num_before_(num_before),
        num_taken_(num_before),
        num_triggered_(num_before),
        num_known_taken_(num_before) {
    for (Stream& stream : streams_) threads_.emplace_back([this, &stream] { run(stream); });
  }

  Stream& stream(size_t number) { return streams_[number]; }
  engine::TriggerReader open() { return engine::TriggerReader({entries_, num_taken_}); }

  void run(Stream& stream) {
    const kernels::Deadline deadline{&stream.has_expired, static_cast<uint64_t>(stream.longest_wait.count())};
    for (; !stream.has_ended(); ++stream.num_ended) {
      const kernels::Trigger trigger{.id = stream.next_id(),
                                     .entries = reinterpret_cast<uint32_t*>(entries_.data()),
                                     .num_taken = reinterpret_cast<const uint32_t*>(&num_taken_),
                                     .has_failed = &stream.has_failed};
      kernels::TriggerWriter(trigger, {num_triggered_, num_known_taken_}, deadline).write();
    }
  }

  void take(engine::TriggerReader& reader, size_t num_ids) {
    for (; num_ids != 0; --num_ids) {
      model::block_until([&] { return reader.next().peek() != 0; }, model::kNever);
      taken_.push_back(reader.take());
    }
  }
  // Until all streams have ended and nothing is left.
  void take_all(engine::TriggerReader& reader) {
    for (bool is_last = false; !is_last;) {
      model::block_until([&] { return reader.next().peek() != 0 || have_ended(); }, model::kNever);
      is_last = have_ended();
      while (const uint32_t id = reader.take()) taken_.push_back(id);
    }
  }
  void take_all() {
    engine::TriggerReader reader = open();
    take_all(reader);
  }

  void block_until_full() const {
    model::block_until([this] { return num_triggered_ - num_taken_.peek() == kNumTriggers; }, model::kNever);
  }
  void block_until_ended() const {
    model::block_until([this] { return have_ended(); }, model::kNever);
  }

  // Returns how many of the stream's ids were taken.
  uint32_t num_taken_of(const Stream& stream) const {
    uint32_t latest = 0;
    uint32_t count = 0;
    for (const uint32_t id : taken_) {
      if (!stream.has_sent(id)) continue;
      model::check(id > std::exchange(latest, id), "the ids of a stream are taken once, in order");
      ++count;
    }
    return count;
  }
  void check_complete(const Stream& stream) const {
    model::check(num_taken_of(stream) == stream.num_kernels, "all ids of the stream are taken");
  }
  void check_end() const {
    for (const Stream& stream : streams_) {
      if (stream.has_failed == 0 && stream.has_expired == 0) check_complete(stream);
      model::check(stream.has_expired == 0 || stream.longest_wait != kLong, "a full ring is awaited");
    }
    model::check(num_triggered_ - num_before_ == taken_.size(), "each entry is written and taken");
    model::check(num_taken_.peek() == num_triggered_, "each entry is counted");
    for (const auto& entry : entries_) model::check(entry.peek() == 0, "each entry is emptied");
  }

 private:
  bool have_ended() const { return std::ranges::all_of(streams_, &Stream::has_ended); }

  std::vector<Stream> streams_;
  std::vector<sync::thread> threads_;
  const uint32_t num_before_;
  std::array<sync::atomic<uint32_t>, kNumTriggers> entries_;
  sync::atomic<uint32_t> num_taken_;
  uint32_t num_triggered_;
  uint32_t num_known_taken_;
  std::vector<uint32_t> taken_;
};

void beside_a_reader(std::initializer_list<Stream> streams, uint32_t num_before = 0) {
  World world(streams, num_before);
  world.take_all();
  world.check_end();
}

// Kernels find the ring full, and go on once there is a reader.
void full_ring_is_awaited() {
  World world({{0, 2}, {1, 2}});
  world.block_until_full();
  world.take_all();
  world.check_end();
}

// The reader of another engine goes on at the entry at which the first one has stopped.
void readers_follow_one_another() {
  World world({{0, 3}, {1, 2}});
  engine::TriggerReader reader = world.open();
  world.take(reader, 3);
  world.take_all();
  world.check_end();
}

// Nothing was read before the streams gave up. Kernels of a later operation find room again.
void check_gave_up(World& world) {
  world.take_all();
  const uint32_t num_taken = world.num_taken_of(world.stream(0)) + world.num_taken_of(world.stream(1));
  model::check(num_taken == kNumTriggers, "ids that find no room are dropped");
  Stream later{2, 2};
  world.run(later);
  world.take_all();
  world.check_complete(later);
  world.check_end();
}

void failure_ends_waits() {
  World world({{0, 3}, {1, 3}});
  for (const size_t number : {0, 1}) {
    model::point();
    world.stream(number).has_failed = 1;
  }
  world.block_until_ended();
  check_gave_up(world);
}

void deadline_ends_waits() {
  static constexpr std::chrono::microseconds kLongestWait{20};
  World world({{0, 5, kLongestWait}, {1, 5, kLongestWait}});
  const model::Duration begin = model::now();
  world.block_until_ended();
  for (const size_t number : {0, 1}) {
    model::check(world.stream(number).has_expired == 1, "the host is told of the deadline");
  }
  model::check(model::now() - begin < 3 * kLongestWait,
               "one wait of a stream ends at its deadline, and others at once");
  check_gave_up(world);
}

void failure_beside_a_stream() {
  World world({{0, 3}, {1, 2}});
  sync::thread failing([&] {
    model::point();
    world.stream(0).has_failed = 1;
  });
  world.take_all();
  world.check_end();
}

constexpr uint32_t kBeforeWrap = ~0U - 1;  // the counts wrap after two ids

constexpr model::Program kPrograms[] = {
    {"full_ring_is_awaited", full_ring_is_awaited, {.most_deviations = 3}},
    {"failure_ends_waits", failure_ends_waits, {.most_deviations = 3}},
    {"deadline_ends_waits", deadline_ends_waits, {.most_deviations = 2}},
    {"readers_follow_one_another", readers_follow_one_another, {.most_deviations = 3}},
    {"counts_wrap", [] { beside_a_reader({{0, 3}, {1, 2}}, kBeforeWrap); }, {.most_deviations = 3}},
    {"two_streams", [] { beside_a_reader({{0, 3}, {1, 3}}); }, {.most_deviations = 3}},
    {"three_streams", [] { beside_a_reader({{0, 2}, {1, 2}, {2, 1}}); }, {.most_deviations = 3}},
    {"failure_beside_a_stream", failure_beside_a_stream, {.most_deviations = 3}},
    {"deadline_beside_a_stream",
     [] { beside_a_reader({{0, 3, std::chrono::microseconds(1)}, {1, 2}}); },
     {.most_deviations = 3}},
};

}  // namespace
}  // namespace axon

std::span<const axon::model::Program> axon::model::programs() {
  return axon::kPrograms;
}
