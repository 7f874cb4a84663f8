#include "c10d/cuda/cutting.hpp"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "c10d/errors.hpp"
#include "cuda/capture.hpp"

namespace axon {

namespace {

constexpr std::array<int64_t, 3> kNumbersOfPieces{2, 4, 8};
constexpr int64_t kFewestRows = 512;        // of a piece
constexpr size_t kNumRounds = 5;            // of which the first one warms up
constexpr size_t kMostMeasuredShapes = 64;  // lengths that change from call to call are not worth it

using Cuts = std::vector<int64_t>;  // rows at once

// The whole comes first.
Cuts cuts_for(int64_t num_rows) {
  Cuts cuts{0};
  for (const int64_t num_pieces : kNumbersOfPieces) {
    if (num_rows >= num_pieces * kFewestRows) cuts.push_back(rows_of_piece(num_rows, num_pieces));
  }
  return cuts;
}

// All that the choice of a kernel may depend on.
using Shape = std::array<int64_t, 10>;

Shape shape_of(const Rows& x, const Weight& weight) {
  const at::Tensor& values = weight.values;
  return {x.values.get_device(),
          x.values.size(0),
          values.size(0),
          values.size(1),
          values.stride(0),
          values.stride(1),
          static_cast<int64_t>(values.scalar_type()),
          static_cast<int64_t>(weight.output_type),
          weight.bias.has_value(),
          weight.scale.defined() ? weight.scale.numel() : 0};
}

struct Choices {
  std::mutex mutex;
  std::map<Shape, int64_t> rows_at_once;
};

Choices& choices() {
  static Choices choices;
  return choices;
}

std::optional<int64_t> known(const Shape& shape) {
  const std::lock_guard lock(choices().mutex);
  const auto found = choices().rows_at_once.find(shape);
  return found == choices().rows_at_once.end() ? std::nullopt : std::optional(found->second);
}

c10::Stream current_stream(const at::Tensor& tensor) {
  return c10::impl::VirtualGuardImpl(at::kCUDA).getStream(tensor.device());
}

bool may_measure(c10::Stream stream) {
  Result<bool> captured = is_capturing(StreamView(static_cast<cudaStream_t>(stream.native_handle())));
  if (!captured.ok()) throw_failure(captured.status());
  const std::lock_guard lock(choices().mutex);
  return !captured.value() && choices().rows_at_once.size() < kMostMeasuredShapes;
}

// Every other round goes backwards: a device that warms up slows down.
int64_t measure(const Rows& x, Weight weight, const at::Tensor& output, const Cuts& cuts) {
  const RelaxedCapture beside_captures;
  const c10::Stream stream = current_stream(output);
  std::vector<c10::Event> marks;
  const auto mark = [&] { marks.emplace_back(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT).record(stream); };
  const auto turn = [&](size_t round, size_t place) { return round % 2 == 0 ? place : cuts.size() - 1 - place; };
  mark();
  for (size_t round = 0; round < kNumRounds; ++round) {
    for (size_t place = 0; place < cuts.size(); ++place) {
      weight.rows_at_once = cuts[turn(round, place)];
      multiply(x, weight, output);
      mark();
    }
  }
  marks.back().synchronize();
  std::vector<double> times(cuts.size());
  for (size_t round = 1; round < kNumRounds; ++round) {
    for (size_t place = 0; place < cuts.size(); ++place) {
      const size_t before = round * cuts.size() + place;
      times[turn(round, place)] += marks[before].elapsedTime(marks[before + 1]);
    }
  }
  return cuts[static_cast<size_t>(std::ranges::min_element(times) - times.begin())];
}

}  // namespace

int64_t fastest_rows_at_once(const Rows& x, const Weight& weight, const at::Tensor& output) {
  const Cuts cuts = cuts_for(output.size(0));
  if (cuts.size() == 1) return cuts.front();
  const int64_t guess = cuts[1];
  if (at::globalContext().deterministicAlgorithms()) return guess;
  const Shape shape = shape_of(x, weight);
  if (const std::optional<int64_t> chosen = known(shape)) return *chosen;
  if (!may_measure(current_stream(output))) return guess;
  const int64_t chosen = measure(x, weight, output, cuts);
  const std::lock_guard lock(choices().mutex);
  choices().rows_at_once.emplace(shape, chosen);
  return chosen;
}

}  // namespace axon
