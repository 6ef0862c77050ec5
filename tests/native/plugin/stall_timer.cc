// The stall timer of a lane, asked by lines on standard input: "field=value ..." sets what stays until it is set
// again, then one look is taken and its finding printed. "fresh=1" in the first one: nothing was acknowledged on the lane
// before. See tests/unit/plugin/test_stall_timer.py.
#include "core/stall_timer.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

using namespace fabricpulse;

int main() {
  StallTimer timer;
  std::map<std::string, uint64_t> fields{{"least_ms", 25},     {"peer_ms", 1'000'000}, {"path_ms", 1'000'000},
                                         {"passed_ms", 10},    {"credit_ms", 10},      {"window", 1},
                                         {"chunk", UINT64_MAX}};
  std::string line;
  for (bool first = true; std::getline(std::cin, line); first = false) {
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      size_t equals = word.find('=');
      fields[word.substr(0, equals)] = std::stoull(word.substr(equals + 1));
    }
    if (first && fields["fresh"] == 0) {
      PathSample before;
      timer.update(before, {}, 0);
      before.acknowledged = 1;
      timer.update(before, {}, 0);
    }
    PathSample sample;
    sample.valid = true;
    sample.unacknowledged = static_cast<uint32_t>(fields["unacknowledged"]);
    sample.few = fields["few"] != 0;
    sample.unsent = fields["unsent"];
    sample.sent = fields["sent"];
    sample.answers = fields["answers"];
    sample.window_open = fields["window"] != 0;
    sample.acknowledged = fields["acknowledged"];
    sample.probes = static_cast<uint32_t>(fields["probes"]);
    sample.retransmits = fields["retransmits"];
    sample.rtt_ns = fields["rtt_ms"] * 1'000'000;
    sample.rtt_deviation_ns = fields["deviation_ms"] * 1'000'000;
    StallTimer::Surroundings around;
    around.least_ns = fields["least_ms"] * 1'000'000;
    around.most_credit_ns = fields["credit_ms"] * 1'000'000;
    around.watched_ns = fields["watched_ms"] * 1'000'000;
    around.watched_due_ns = fields["watched_due_ms"] * 1'000'000;
    around.watched_chunk_ns = fields["watched_chunk_ms"] * 1'000'000;
    around.peer_answered_ago_ns = fields["peer_ms"] * 1'000'000;
    around.path_answered_ago_ns = fields["path_ms"] * 1'000'000;
    around.answer_due = fields["answer_due"] != 0;
    around.path_failed = fields["path_failed"] != 0;
    around.answered_in_ns = fields["answered_in_ms"] * 1'000'000;
    around.chunk = fields["chunk"];
    around.chunk_ns = fields["chunk_ms"] * 1'000'000;
    static constexpr const char* kNames[] = {"well", "silent", "behind", "late"};
    auto finding = timer.update(sample, around, fields["passed_ms"] * 1'000'000);
    printf("%s %" PRIu64 " %d %s\n", kNames[static_cast<int>(finding)], timer.silent_ns() / 1'000'000,
           timer.suspect(), timer.explain(finding, sample, around).c_str());
  }
  return 0;
}
