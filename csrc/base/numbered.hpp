// Numbers for what others name by number later on: its place, and how often that has been used, so that who answers
// late or twice finds nothing. They are no secret.
//
//   const uint64_t number = waiting.add(transfer);   …   Transfer* transfer = waiting.find(number);
//   waiting.remove(number);
//
// After warm-up nothing is allocated. Owns nothing.
#pragma once

#include <cstdint>
#include <vector>

namespace axon {

template <typename T>
class Numbered {
 public:
  uint64_t add(T& thing) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(places_.size()));
      places_.emplace_back();
    }
    const uint32_t place = free_.back();
    free_.pop_back();
    places_[place] = {.thing = &thing, .num_uses = places_[place].num_uses + 1};
    return uint64_t{places_[place].num_uses} << 32 | place;
  }

  T* find(uint64_t number) const noexcept {
    const auto place = static_cast<uint32_t>(number);
    if (place >= places_.size()) return nullptr;
    return places_[place].num_uses == number >> 32 ? places_[place].thing : nullptr;
  }

  // It must be there.
  void remove(uint64_t number) noexcept {
    const auto place = static_cast<uint32_t>(number);
    places_[place].thing = nullptr;
    free_.push_back(place);
  }

  // It has been here: whoever names it is late.
  bool was_here(uint64_t number) const noexcept {
    const auto place = static_cast<uint32_t>(number);
    const uint64_t use = number >> 32;
    return place < places_.size() && use != 0 && use <= places_[place].num_uses && find(number) == nullptr;
  }

 private:
  struct Place {
    T* thing = nullptr;  // none: the place is free
    uint32_t num_uses = 0;
  };

  std::vector<Place> places_;
  std::vector<uint32_t> free_;
};

}  // namespace axon
