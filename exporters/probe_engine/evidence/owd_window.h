// One-way delays of the last interval: quantiles from a log-linear histogram, minimum and maximum exact.
//
// Two halves: the one being filled and the one before it. A quantile covers both, so that a burst stays
// visible for at least one whole window after it ended, whenever the scrape comes. Fixed size, no allocation,
// about 20 ns an entry.
#ifndef FABRICPULSE_EXPORTERS_OWD_WINDOW_H_
#define FABRICPULSE_EXPORTERS_OWD_WINDOW_H_

#include <algorithm>
#include <cstdint>
#include <limits>

namespace fabricpulse {

class OwdWindow {
 public:
  void add(std::int64_t ns) {
    Half& half = halves_[current_];
    std::uint16_t& cell = half.cells[cell_of(ns)];
    if (cell < std::numeric_limits<std::uint16_t>::max()) ++cell;
    ++half.count;
    half.min = std::min(half.min, ns);
    half.max = std::max(half.max, ns);
  }
  void rotate() {
    current_ ^= 1;
    halves_[current_] = Half{};
  }
  std::uint32_t count() const { return halves_[0].count + halves_[1].count; }
  std::int64_t min() const { return std::min(halves_[0].min, halves_[1].min); }
  std::int64_t max() const { return std::max(halves_[0].max, halves_[1].max); }
  // Error below 1.6 % of the value. Undefined when count() is 0.
  std::int64_t quantile(double q) const { return quantile_of(q); }

 private:
  // 64 cells per power of two from 64 ns to 2^31 ns; below 64 ns a cell is 1 ns. Delays below zero, which
  // only the error of two clocks can make, have the same cells down to -2^24 ns.
  static constexpr int kSub = 6;
  static constexpr int kPositive = (31 - kSub + 1) << kSub;
  static constexpr int kNegative = (24 - kSub + 1) << kSub;
  static constexpr int kCells = kNegative + kPositive;

  static int cell_of(std::int64_t ns) {
    if (ns >= 0) return kNegative + magnitude_cell(ns, kPositive);
    return kNegative - 1 -
           magnitude_cell(ns == std::numeric_limits<std::int64_t>::min()
                              ? std::numeric_limits<std::int64_t>::max()
                              : -ns,
                          kNegative);
  }
  static int magnitude_cell(std::int64_t ns, int cells) {
    if (ns >= std::int64_t{1} << 31) return cells - 1;
    const auto v = static_cast<std::uint32_t>(ns);
    const int top = 31 - __builtin_clz(v | 1u);
    if (top < kSub) return static_cast<int>(v);
    const int cell = ((top - kSub + 1) << kSub) + static_cast<int>((v >> (top - kSub)) & ((1u << kSub) - 1));
    return std::min(cell, cells - 1);
  }
  static std::int64_t middle_of(int cell) {
    return cell >= kNegative ? middle_of_magnitude(cell - kNegative)
                             : -middle_of_magnitude(kNegative - 1 - cell);
  }
  static std::int64_t middle_of_magnitude(int cell) {
    const int octave = cell >> kSub;
    if (octave == 0) return cell;
    const int shift = octave - 1;
    const std::int64_t low = static_cast<std::int64_t>((1 << kSub) + (cell & ((1 << kSub) - 1))) << shift;
    return low + (shift > 0 ? std::int64_t{1} << (shift - 1) : 0);
  }
  std::int64_t quantile_of(double q) const {
    const Half& a = halves_[current_];
    const Half& b = halves_[current_ ^ 1];
    const std::uint32_t total = count();
    if (q >= 1) return max();
    const double rank = q * total;
    double seen = 0;
    for (int i = 0; i < kCells; ++i) {
      seen += a.cells[i] + b.cells[i];
      if (seen > 0 && seen >= rank) return std::clamp(middle_of(i), min(), max());
    }
    return max();
  }

  struct Half {
    std::uint16_t cells[kCells] = {};
    std::uint32_t count = 0;
    std::int64_t min = std::numeric_limits<std::int64_t>::max();  // ns
    std::int64_t max = std::numeric_limits<std::int64_t>::min();  // ns
  };
  Half halves_[2];
  int current_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_OWD_WINDOW_H_
