// Walks through every interleaving of the fencing state machines: lanes that carry chunks and words in order,
// lose them in one direction or both, are failed by either end at any moment (rightly or not), and are
// dialled again.
//
// Holds in every state reached:
//  - a chunk is never written while it is held, nor by two lanes at once;
//  - neither end ever sees a violation of the protocol or a duplicate;
//  - the sender takes a chunk for delivered only if the receiver holds it, and once;
//  - where nothing more can happen, everything is delivered (no hang).
//
// With `one-sided` lanes are queue pairs: chunks are writes that land without the receiver's doing, and it learns
// of them later, in order. A lane that it closes drains first: until then writes may still land by it, and nothing
// is said of it. Holds in addition:
//  - no write lands in the place of a chunk that is held: the application may have its memory back;
//  - the low bits of a chunk's number, which announce it, are those of no other. This needs more chunks than the window
//    has: plugin_fencing_explore_window has one of two.
// `hasty` is a receiver that says kFenced before its queue pair has drained, `coarse` announces a bit too little: both
// must be found out.
//
// With `queued` a chunk waits in its lane before it leaves, as in a socket that is full; words overtake it. Holds in
// addition:
//  - no lane still reads a chunk that is delivered: its memory may be gone.
// `lingering` is a sender whose lanes send on what they were given after they have failed: it must be found out.
//
// Usage: plugin_fencing_explore LANES CHUNKS FAULTS [one-sided|hasty|coarse|queued|lingering]; prints the number of states.
// Exit 1 with the trace of a violation.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "fencing_model.h"
#include "fencing_visited.h"

using namespace fabricpulse;
using namespace fabricpulse::fencing_model;

int main(int argc, char** argv) {
  if (argc == 5) {
    const std::string mode = argv[4];
    hasty = mode == "hasty";
    coarse = mode == "coarse";
    one_sided = hasty || coarse || mode == "one-sided";
    lingering = mode == "lingering";
    queues = lingering || mode == "queued";
    if (!one_sided && !queues) return 2;
  }
  if (argc >= 4) {
    lanes = static_cast<uint32_t>(strtoul(argv[1], nullptr, 10));
    chunks = static_cast<uint32_t>(strtoul(argv[2], nullptr, 10));
    faults = static_cast<uint32_t>(strtoul(argv[3], nullptr, 10));
  }
  if (lanes < 1 || lanes > 2 || chunks > 8) return 2;
  Model start;
  start.faults_left = static_cast<uint8_t>(faults);
  // All lanes are up; how they come up is the same as how they come back.
  for (uint32_t l = 0; l < lanes; ++l) {
    uint32_t epoch = start.sender.take_epoch(l);
    start.receiver.hello(l, epoch);
    start.sender.joined(l, epoch, held_now(start), on_held(&start), on_move());
    Incarnation incarnation;
    incarnation.epoch = epoch;
    incarnation.sender_open = incarnation.receiver_open = true;
    start.incarnations[l].push_back(incarnation);
  }
  // Depth first: the path to a state is the stack, and only keys are kept of what was seen.
  struct Frame {
    std::vector<Step> next;
    size_t at = 0;
  };
  Known known;
  std::vector<Frame> stack;
  uint64_t transitions = 0, ends = 0;
  auto trace = [&] {
    for (const Frame& frame : stack) {
      if (frame.at == 0) continue;
      const Label& label = frame.next[frame.at - 1].label;
      fprintf(stderr, "  %s %llu %llu\n", label.text, static_cast<unsigned long long>(label.a),
              static_cast<unsigned long long>(label.b));
    }
  };
  auto enter = [&](const Model& model) {
    stack.emplace_back();
    successors(model, &stack.back().next);
    bool done = model.sender.base() == chunks;
    ends += done;
    if (!stack.back().next.empty() || done) return true;
    fprintf(stderr, "hang: nothing can happen, %llu of %u chunks delivered\n",
            static_cast<unsigned long long>(model.sender.base()), chunks);
    return false;
  };
  known.insert(digest(start));
  bool fine = enter(start);
  while (fine && !stack.empty()) {
    Frame& frame = stack.back();
    if (frame.at == frame.next.size()) {
      stack.pop_back();
      continue;
    }
    Model model = std::move(frame.next[frame.at++].after);
    ++transitions;
    if (!model.violation.empty()) {
      fprintf(stderr, "violation: %s\n", model.violation.c_str());
      fine = false;
    } else if (known.insert(digest(model))) {
      fine = enter(model);
    }
  }
  if (!fine) {
    trace();
    return 1;
  }
  printf(
      "{\"lanes\": %u, \"chunks\": %u, \"faults\": %u, \"states\": %zu, \"transitions\": %llu, "
      "\"delivered\": %llu}\n",
      lanes, chunks, faults, known.size(), static_cast<unsigned long long>(transitions),
      static_cast<unsigned long long>(ends));
  return ends > 0 ? 0 : 1;
}
