#include "trains.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <stdexcept>

namespace fabricpulse {
namespace {

// A packet that arrives this much before it can have been sent tells of a stepped clock, or of a machine that was
// paused; one that does so by more than the bound of the fit allows, too, but for what stamps may be late.
constexpr double kStepNs = 20'000, kLateStampNs = 1'000;

bool earlier(const Train& one, const Train& other) { return one.t_ns < other.t_ns; }

// Delay of the fastest packet from `first` on by the line, ns; negative: it arrived before it was sent.
double delay(const Train& train, int sign, const OffsetLine& line, int first) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int k = first; k < FP_PROBE_TRAIN; ++k)
    // In integers: two clocks may be years apart, which a double resolves to 256 ns only.
    if (train.valid[k])
      fastest =
          std::min(fastest, static_cast<double>(train.rx_ns[k] - train.tx_ns[k] - sign * line.offset_ns));
  return fastest - sign * line.rate_ppb * 1e-9 * static_cast<double>(train.t_ns - line.t_ns);
}

std::vector<double> delays(const Trains& trains, int sign, const OffsetLine& line, int first) {
  std::vector<double> result;
  result.reserve(trains.size());
  for (const Train& train : trains) result.push_back(delay(train, sign, line, first));
  return result;
}

}  // namespace

Trains::Trains(std::vector<Train> trains)
    : all_(std::make_shared<std::vector<Train>>(std::move(trains))), begin_(0), end_(all_->size()) {}

Trains::Trains(std::shared_ptr<std::vector<Train>> all, std::size_t begin, std::size_t end)
    : all_(std::move(all)), begin_(begin), end_(end) {}

std::size_t Trains::find(std::int64_t t_ns) const {
  const Train* at = std::lower_bound(begin(), end(), t_ns,
                                     [](const Train& train, std::int64_t t) { return train.t_ns < t; });
  return static_cast<std::size_t>(at - begin());
}

double Trains::worst_stamp_ns() const {
  std::int32_t worst = 0;
  for (const Train& train : *this) worst = std::max(worst, train.error_ns);
  return worst;
}

Trains Trains::part(std::size_t begin, std::size_t end) const {
  end = std::min(end, size());
  return {all_, begin_ + std::min(begin, end), begin_ + end};
}

Trains Trains::without(const std::vector<std::int64_t>& t_ns) const {
  std::vector<Train> rest;
  std::copy_if(begin(), end(), std::back_inserter(rest), [&](const Train& train) {
    return std::find(t_ns.begin(), t_ns.end(), train.t_ns) == t_ns.end();
  });
  return Trains(std::move(rest));
}

Trains Trains::without_fastest(std::size_t count, int sign, const OffsetLine& line) const {
  std::vector<double> by = delays(*this, sign, line, 1);
  std::vector<Train> rest(begin(), end());
  for (; count > 0 && !rest.empty(); --count) {
    const auto k = std::min_element(by.begin(), by.end()) - by.begin();
    by.erase(by.begin() + k);
    rest.erase(rest.begin() + k);
  }
  return Trains(std::move(rest));
}

Trains Trains::joined(const std::vector<std::pair<const fp_probe_sample*, std::size_t>>& samples,
                      fp_probe_direction direction) const {
  std::vector<Train> all(begin(), end());
  const std::size_t old = all.size();
  for (const auto& [first, count] : samples) {
    for (const fp_probe_sample* sample = first; sample != first + count; ++sample) {
      const int both = sample->tx_valid & sample->rx_valid;
      // Engines before this one left stamps of a NIC on its own clock.
      const bool tx_nic = sample->flags & FP_PROBE_TX_HARDWARE, rx_nic = sample->flags & FP_PROBE_RX_HARDWARE;
      const bool foreign = (tx_nic && sample->tx_error_ns == 0) || (rx_nic && sample->rx_error_ns == 0);
      if (foreign || !(sample->flags & FP_PROBE_MAIN_PATH) || sample->direction != direction || !(both & 7))
        continue;
      Train train{};
      train.error_ns = (tx_nic ? sample->tx_error_ns : 0) + (rx_nic ? sample->rx_error_ns : 0);
      for (int k = FP_PROBE_TRAIN - 1; k >= 0; --k) {
        train.tx_ns[k] = sample->tx_ns[k];
        train.rx_ns[k] = sample->rx_ns[k];
        train.valid[k] = both >> k & 1;
        // The first one that is there; trains are so short that it does not matter which.
        const bool outbound = direction == FP_PROBE_OUTBOUND;
        if ((outbound ? sample->tx_valid : sample->rx_valid) >> k & 1)
          train.t_ns = outbound ? sample->tx_ns[k] : sample->rx_ns[k];
      }
      all.push_back(train);
    }
  }
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(old);
  std::stable_sort(middle, all.end(), earlier);
  std::inplace_merge(all.begin(), middle, all.end(), earlier);
  return Trains(std::move(all));
}

EarlyTrains Trains::early(int sign, const OffsetLine& line, std::int64_t last_ns, double bound_ns,
                          double unsure_ppb) const {
  const auto first_fresh = static_cast<std::size_t>(
      std::upper_bound(begin(), end(), last_ns,
                       [](std::int64_t t, const Train& train) { return t < train.t_ns; }) -
      begin());
  EarlyTrains result{{}, size() - first_fresh};
  const double limit = std::min(kStepNs, 2 * bound_ns + kLateStampNs);
  const auto by = [&](std::size_t k) { return delay(begin()[k], sign, line, 0); };
  std::vector<std::size_t> places;
  for (std::size_t k = first_fresh; k < size(); ++k) {
    // By so much the fit itself may be wrong: where each packet has waited in a queue, the first one that has not comes
    // early by milliseconds, and no clock has stepped.
    const double unsure =
        bound_ns + kLateStampNs + unsure_ppb * 1e-9 * static_cast<double>(begin()[k].t_ns - last_ns);
    if (by(k) < -std::max(limit, unsure)) places.push_back(k);
  }
  double at_least = 0;
  if (limit < kStepNs && !places.empty()) {
    const std::size_t first = places.front();
    const auto least = [&](std::size_t from, std::size_t to) {
      double fastest = std::numeric_limits<double>::infinity();
      for (std::size_t k = from; k < std::min(to, size()); ++k) fastest = std::min(fastest, by(k));
      return fastest;
    };
    const double before = least(first - std::min(first, 2 * kStepTrains), first);
    // A clock that runs faster comes there train by train: that is no step, until it is as far as one.
    if (first == 0 || before - least(first, first + kStepTrains) < 0.9 * limit) at_least = kStepNs;
  }
  for (const std::size_t k : places)
    if (by(k) < -at_least) result.t_ns.push_back(begin()[k].t_ns);
  return result;
}

std::pair<double, double> Trains::floor(int sign, const OffsetLine& line) const {
  if (size() == 0) throw std::invalid_argument("no trains");
  std::vector<double> by = delays(*this, sign, line, 1);
  const auto usual = by.begin() + static_cast<std::ptrdiff_t>((2 * by.size() - 2) / 5);
  std::nth_element(by.begin(), usual, by.end());
  return {*std::min_element(by.begin(), usual + 1), *usual};
}

}  // namespace fabricpulse
