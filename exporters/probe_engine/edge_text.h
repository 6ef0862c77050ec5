// The hot part of /metrics: the samples of all edges as text, from the records of a snapshot. Pure.
//
// In Python a scrape of 10,000 series takes 10 ms and holds the interpreter for as long; here it takes 1 ms.
#ifndef FABRICPULSE_EXPORTERS_EDGE_TEXT_H_
#define FABRICPULSE_EXPORTERS_EDGE_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "snapshot.h"

namespace fabricpulse {

// The families in the order of EdgeText::render; the Python side gives their names in this order.
enum EdgeFamily : int {
  kFamilyUp = 0,
  kFamilySent,
  kFamilyReceived,
  kFamilyLost,
  kFamilyInbound,
  kFamilyOutbound,
  kFamilyOwd,
  kFamilyOwdBound,
  kFamilyPathOwd,
  kFamilyWorstPort,
  kFamilyPathsDown,
  kFamilyBaseline,
  kFamilyElevated,
  kFamilyOutboundLost,
  kFamilyRtt,
  kFamilyDegraded,
  kFamilyWorstLoss,
  kFamilyBlackHole,
  kEdgeFamilies,
};

// Where a whole network is slow all of its edges are, and rules read each that is exported several times over.
// Three are enough to name a receiving NIC (sharedEdges in mixins/config.libsonnet). A slow sender is named as it is among
// the first three of at least three receivers, if few senders are slow.
constexpr int kMostSlowEdges = 3;

struct PathSummary {
  bool known = false;
  std::int64_t best_ns = 0, median_ns = 0, worst_ns = 0;
  int worst =
      -1;  // index of the worst source port: one that is dead, or else the lossiest, one that drops large packets, or the slowest
  int dead = 0;
  int degraded = 0;             // down, lossy, elevated or dropping large packets
  bool loses = false;           // one is down, lossy or dropping large packets
  std::uint32_t worst_ppm = 0;  // loss of the lossiest path that loses more than a healthy one
};
PathSummary summarize_paths(const EdgeRecord& edge);

// What a scrape wants to know of all edges beside their samples.
struct NicEdges {
  std::uint64_t up = 0, down = 0, unknown = 0;  // edges
  std::uint64_t degraded = 0;                   // of those that are up: a source port is down, lossy or slow
  std::uint64_t send_errors = 0, sent = 0, received = 0, lost = 0, outbound_lost = 0;  // packets
};
struct EdgeSummary {
  std::vector<NicEdges> nics;
  bool impaired = false;  // an edge is down, or a path of one is
};
// Throws std::invalid_argument for an edge of a NIC that is not there.
EdgeSummary summarize_edges(const std::vector<EdgeRecord>& edges, std::size_t nics);

class EdgeText {
 public:
  // names : of the families, kEdgeFamilies of them. labels : of each edge, as
  // `device="…",peer="…",peer_device="…"`. port : source port of path 0. Throws std::invalid_argument for
  // another number of names.
  EdgeText(std::vector<std::string> names, std::vector<std::string> labels, int port);

  struct Block {
    std::string text;
    std::uint32_t samples = 0;
  };
  // One block for each family. `edges` holds one record for each of the labels, in the same order. only_suffering :
  // edges that are down, slow, or have a source port that is down, lossy or slow; of others the baseline alone. Of
  // these without loss neither counts of packets nor of dead paths, and of those of a NIC that are slow and nothing
  // worse the first kMostSlowEdges, as well of those of which a source port alone is slow.
  std::vector<Block> render(const EdgeRecord* edges, bool only_suffering) const;
  std::size_t edges() const { return labels_.size(); }

 private:
  std::vector<std::string> names_, labels_;
  int port_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_EDGE_TEXT_H_
