#include "edge_text.h"

#include <algorithm>
#include <charconv>
#include <climits>
#include <map>
#include <stdexcept>
#include <utility>

#include "health/health.h"

namespace fabricpulse {
namespace {

constexpr auto kUp = static_cast<std::uint8_t>(HealthState::kUp);
constexpr auto kDown = static_cast<std::uint8_t>(HealthState::kDown);
constexpr auto kUnknown = static_cast<std::uint8_t>(HealthState::kUnknown);

class Writer {
 public:
  Writer(EdgeText::Block* block, const std::string& name) : block_(*block), name_(name) {}

  void sample(const std::string& labels, std::uint64_t value) {
    begin("", labels, "");
    char digits[24];
    block_.text.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
    end();
  }
  // Nanoseconds as seconds, in the shortest form that reads back as the same number.
  void seconds(const char* suffix, const std::string& labels, const char* extra, std::int64_t ns) {
    begin(suffix, labels, extra);
    char digits[40];
    block_.text.append(digits,
                       std::to_chars(digits, digits + sizeof(digits), static_cast<double>(ns) / 1e9).ptr);
    end();
  }
  void ratio(const std::string& labels, double part, double whole) {
    begin("", labels, "");
    char digits[40];
    block_.text.append(digits, std::to_chars(digits, digits + sizeof(digits), part / whole).ptr);
    end();
  }
  void count(const char* suffix, const std::string& labels, std::uint64_t value) {
    begin(suffix, labels, "");
    char digits[24];
    block_.text.append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
    end();
  }

 private:
  void begin(const char* suffix, const std::string& labels, const char* extra) {
    block_.text.append(name_).append(suffix).append("{").append(labels).append(extra).append("} ");
  }
  void end() {
    block_.text.push_back('\n');
    ++block_.samples;
  }

  EdgeText::Block& block_;
  const std::string& name_;
};

}  // namespace

PathSummary summarize_paths(const EdgeRecord& edge) {
  PathSummary s;
  std::pair<std::int64_t, int> known[kMaxPaths];
  int count = 0, dead = -1, lossy = -1, cut = -1;
  const int paths = static_cast<int>(std::min<std::uint32_t>(edge.paths, kMaxPaths));
  for (int i = 0; i < paths; ++i) {
    const PathRecord& path = edge.path[i];
    s.degraded += path.state == kDown || path.lossy != 0 || path.latency == kDown || path.cut == kCut;
    s.loses = s.loses || path.state == kDown || path.lossy != 0 || path.cut == kCut;
    if (path.cut == kCut && cut < 0) cut = i;
    if (path.lossy != 0 && path.loss_ppm > s.worst_ppm) {
      s.worst_ppm = path.loss_ppm;
      lossy = i;
    }
    if (edge.path[i].state == kDown) {
      ++s.dead;
      dead = i;
    } else if (edge.path[i].owd_ns != INT64_MIN) {
      known[count++] = {edge.path[i].owd_ns, i};
    }
  }
  s.worst = dead >= 0 ? dead : lossy >= 0 ? lossy : cut;
  if (count == 0) return s;
  std::sort(known, known + count);
  s.known = true;
  s.best_ns = known[0].first;
  s.median_ns = known[count / 2].first;
  s.worst_ns = known[count - 1].first;
  if (s.worst < 0) s.worst = known[count - 1].second;
  return s;
}

EdgeSummary summarize_edges(const std::vector<EdgeRecord>& edges, std::size_t nics) {
  EdgeSummary summary;
  summary.nics.resize(nics);
  for (const EdgeRecord& edge : edges) {
    if (edge.nic >= nics) throw std::invalid_argument("an edge names a NIC that is not there");
    const PathSummary paths = summarize_paths(edge);
    NicEdges& nic = summary.nics[edge.nic];
    ++(edge.state == kUp ? nic.up : edge.state == kDown ? nic.down : nic.unknown);
    nic.degraded += edge.state == kUp && paths.degraded > 0;
    nic.send_errors += edge.send_errors;
    nic.sent += edge.sent;
    nic.received += edge.received;
    nic.lost += edge.lost;
    nic.outbound_lost += edge.outbound_lost;
    summary.impaired = summary.impaired || edge.state == kDown || paths.dead > 0;
  }
  return summary;
}

EdgeText::EdgeText(std::vector<std::string> names, std::vector<std::string> labels, int port)
    : names_(std::move(names)), labels_(std::move(labels)), port_(port) {
  if (names_.size() != kEdgeFamilies) throw std::invalid_argument("one name for each family is needed");
}

std::vector<EdgeText::Block> EdgeText::render(const EdgeRecord* edges, bool only_suffering) const {
  std::vector<Block> blocks(kEdgeFamilies);
  std::vector<Writer> to;
  for (int f = 0; f < kEdgeFamilies; ++f) {
    const int lines = f == kFamilyOwd ? 5 : f == kFamilyPathOwd ? 3 : 1;
    blocks[static_cast<std::size_t>(f)].text.reserve(labels_.size() * static_cast<std::size_t>(lines) * 128);
    to.emplace_back(&blocks[static_cast<std::size_t>(f)], names_[static_cast<std::size_t>(f)]);
  }
  auto up_or_down = [&to](EdgeFamily family, const std::string& labels, std::uint8_t state) {
    if (state != kUnknown) to[family].sample(labels, state == kUp ? 1 : 0);
  };
  struct SlowEdges {
    int main_path = 0, other_paths = 0;
  };
  std::map<std::uint32_t, SlowEdges> slow_edges;  // by NIC
  for (std::size_t i = 0; i < labels_.size(); ++i) {
    const EdgeRecord& e = edges[i];
    const std::string& l = labels_[i];
    const PathSummary paths = summarize_paths(e);
    const bool loses = e.state == kDown || paths.loses;
    bool exported = loses || e.latency == kDown || paths.degraded > 0;
    if (exported && !loses) {
      SlowEdges& slow = slow_edges[e.nic];
      exported = ++(e.latency == kDown ? slow.main_path : slow.other_paths) <= kMostSlowEdges;
    }
    if (only_suffering && !exported) {
      if (e.latency != kUnknown) to[kFamilyBaseline].seconds("", l, "", e.baseline_ns);
      continue;
    }
    up_or_down(kFamilyUp, l, e.state);
    up_or_down(kFamilyInbound, l, e.inbound);
    up_or_down(kFamilyOutbound, l, e.outbound);
    // Rules read all that is exported of slow edges: nothing of what only lossy ones are asked for.
    if (loses || !only_suffering) {
      to[kFamilySent].sample(l, e.sent);
      to[kFamilyReceived].sample(l, e.received);
      to[kFamilyLost].sample(l, e.lost);
    }
    if (e.window_count > 0) {
      to[kFamilyOwd].seconds("", l, ",quantile=\"0.5\"", e.owd_p50_ns);
      to[kFamilyOwd].seconds("", l, ",quantile=\"0.99\"", e.owd_p99_ns);
      to[kFamilyOwd].seconds("", l, ",quantile=\"1\"", e.owd_max_ns);
      to[kFamilyOwdBound].seconds("", l, "", e.owd_bound_ns);
    }
    to[kFamilyOwd].seconds("_sum", l, "", e.owd_sum_ns);
    to[kFamilyOwd].count("_count", l, e.owd_count);
    if (paths.known) {
      to[kFamilyPathOwd].seconds("", l, ",path=\"best\"", paths.best_ns);
      to[kFamilyPathOwd].seconds("", l, ",path=\"median\"", paths.median_ns);
      to[kFamilyPathOwd].seconds("", l, ",path=\"worst\"", paths.worst_ns);
    }
    to[kFamilyOutboundLost].sample(l, e.outbound_lost);
    if (e.rtt_ns != INT64_MIN) to[kFamilyRtt].seconds("", l, "", e.rtt_ns);
    if (paths.degraded > 0 && paths.worst >= 0)
      to[kFamilyWorstPort].sample(l, static_cast<std::uint64_t>(port_ + paths.worst));
    if (paths.degraded > 0) to[kFamilyDegraded].ratio(l, paths.degraded, static_cast<double>(e.paths));
    if (paths.worst_ppm > 0) to[kFamilyWorstLoss].ratio(l, paths.worst_ppm, 1e6);
    if (e.black_hole_bytes != 0) to[kFamilyBlackHole].sample(l, e.black_hole_bytes);
    if (e.received > 0 && (paths.dead > 0 || !only_suffering))
      to[kFamilyPathsDown].sample(l, static_cast<std::uint64_t>(paths.dead));
    if (e.latency != kUnknown) {
      to[kFamilyBaseline].seconds("", l, "", e.baseline_ns);
      to[kFamilyElevated].sample(l, e.latency == kDown ? 1 : 0);
    }
  }
  return blocks;
}

}  // namespace fabricpulse
