// What a sender gives to one lane (nccl_plugin/src/core/lane_flow.h), asked by lines on standard input;
// tests/unit/plugin/test_lane_flow.py asks.
//
// A line is a call and its numbers: "join", "cautious" (a join after one that was given up), "sent BYTES", "settled BYTES", "measure BYTES AHEAD TOOK MOST NOW",
// "widen BYTES BACK_NS MEASURED", "fade CEILING NOW", "stale NOW", "took NS", "chunk STRETCH", "shown" (the rate that is shown). After each, what it
// returned (0 for nothing) and the fields in_flight, rate, window, slow_start, posted, delivered, took_ns are printed.
#include "core/lane_flow.h"

#include <cinttypes>
#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

int main() {
  fabricpulse::LaneFlow flow;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string call;
    uint64_t number[5] = {}, result = 0;
    words >> call;
    for (uint64_t& value : number) words >> value;
    const auto bytes = static_cast<uint32_t>(number[0]);
    if (call == "join" || call == "cautious") {
      flow.cautious = call == "cautious";
      flow.join();
    } else if (call == "sent") {
      result = flow.sent(bytes);
    } else if (call == "settled") {
      flow.settled(bytes);
    } else if (call == "measure") {
      result = flow.measure(bytes, number[1], number[2], static_cast<double>(number[3]), number[4]);
    } else if (call == "widen") {
      result = flow.widen(bytes, number[1], number[2] != 0);
    } else if (call == "fade") {
      flow.fade(static_cast<double>(number[0]), number[1]);
    } else if (call == "stale") {
      result = flow.stale(number[0]);
    } else if (call == "took") {
      flow.note_took(number[0]);
    } else if (call == "chunk") {
      result = flow.chunk_bytes(bytes);
    } else if (call == "shown") {
      result = static_cast<uint64_t>(flow.measured_rate);
    } else {
      return 2;
    }
    printf("%" PRIu64 " %" PRIu64 " %.0f %" PRIu64 " %d %u %" PRIu64 " %" PRIu64 "\n", result, flow.in_flight,
           flow.rate, flow.window, static_cast<int>(flow.slow_start), flow.posted, flow.delivered,
           flow.took_ns);
  }
  return 0;
}
