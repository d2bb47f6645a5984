// A set of addresses, to find out whether one is given twice. Much faster than std::unordered_set, which allocates a node
// for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kiln {

class Distinct {
 public:
  // For at most so many addresses, none of which is null.
  explicit Distinct(size_t count) {
    size_t places = 16;
    while (places < 2 * count) places *= 2;
    places_.assign(places, nullptr);
  }

  // False where it was added before.
  bool add(const void* address) {
    const size_t last = places_.size() - 1;
    size_t place = spread(reinterpret_cast<uintptr_t>(address)) & last;
    for (; places_[place]; place = (place + 1) & last) {
      if (places_[place] == address) return false;
    }
    places_[place] = address;
    return true;
  }

 private:
  // Objects begin at multiples of 16 bytes, and at equal distances where they were made in a row.
  static size_t spread(uint64_t address) { return static_cast<size_t>((address * 0x9E3779B97F4A7C15ull) >> 32); }

  std::vector<const void*> places_;
};

}  // namespace kiln
