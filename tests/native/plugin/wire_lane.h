// Lanes over wires that a script cuts, in virtual time: what is written while a wire is dead arrives when it is restored.
#ifndef FABRICPULSE_TESTS_NATIVE_WIRE_LANE_H_
#define FABRICPULSE_TESTS_NATIVE_WIRE_LANE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "core/lane.h"

namespace fabricpulse {

// What both ends of a lane write into, and whether it passes anything now.
struct Wire {
  struct Frame {
    FrameHeader header;
    HeldState body;
  };
  const bool* dead = nullptr;
  std::deque<Frame> to[2];     // arrived at this end
  std::deque<Frame> waits[2];  // written by the other end, sent again until it arrives
  uint64_t written[2] = {}, arrived[2] = {};

  void step() {
    if (*dead) return;
    for (int end : {0, 1})
      for (; !waits[end].empty(); waits[end].pop_front()) {
        to[end].push_back(waits[end].front());
        ++arrived[end];
      }
  }
};

// One end; 0 is the sender's. As a queue pair it has proven nothing until its first frames are acknowledged.
class WireLane final : public LaneTransport {
 public:
  WireLane(std::shared_ptr<Wire> wire, int end, bool tcp) : wire_(std::move(wire)), end_(end), tcp_(tcp) {
    FrameHeader first;
    first.type = FrameType::kPong;
    if (!tcp_ && end_ == 0) write({first, {}});
  }
  fp_lane_transport kind() const override { return tcp_ ? FP_LANE_TCP : FP_LANE_VERBS; }
  bool post_chunk(const FrameHeader& header, const void*, const RegisteredMemory*) override {
    ++posted_;
    write({header, {}});
    return true;
  }
  bool post_state(const FrameHeader& header, const HeldState* body) override {
    if (wire_->waits[1 - end_].size() > 60) return false;
    write({header, body != nullptr ? *body : HeldState{}});
    return true;
  }
  uint32_t chunks_taken() const override { return posted_; }
  bool backlog() const override { return false; }
  LaneStatus flush() override { return LaneStatus::kIdle; }
  LaneStatus poll(uint32_t lane, LaneSink* sink) override {
    wire_->step();
    LaneStatus status = LaneStatus::kIdle;
    auto& inbox = wire_->to[end_];
    while (!closed_ && !inbox.empty()) {
      const Wire::Frame frame = inbox.front();
      inbox.pop_front();
      status = LaneStatus::kProgress;
      received_ = true;
      bool fatal = false;
      if (frame.header.type != FrameType::kChunk) {
        if (!sink->state_frame(lane, frame.header, frame.body)) return LaneStatus::kProtocol;
      } else if (sink->chunk_begins(lane, frame.header, &fatal) != nullptr) {
        sink->chunk_ends(lane, frame.header);
      }
      if (fatal) return LaneStatus::kProtocol;
    }
    return status;
  }
  PathSample sample() const override {
    PathSample sample;
    sample.valid = !closed_;
    sample.unacknowledged = static_cast<uint32_t>(wire_->written[1 - end_] - wire_->arrived[1 - end_]);
    sample.acknowledged = wire_->arrived[1 - end_];
    sample.rtt_ns = 1'000'000;
    sample.rtt_deviation_ns = 9'000'000;
    return sample;
  }
  bool proven() const override { return tcp_ || (end_ == 0 ? wire_->arrived[1] > 0 : received_); }
  int wait_fd() const override { return -1; }
  uint64_t queue_pair() const override { return 1; }
  uint32_t entropy() const override { return 1; }
  void close(bool) override { closed_ = true; }

 private:
  void write(const Wire::Frame& frame) {
    wire_->waits[1 - end_].push_back(frame);
    ++wire_->written[1 - end_];
  }
  const std::shared_ptr<Wire> wire_;
  const int end_;
  const bool tcp_;
  uint32_t posted_ = 0;
  bool closed_ = false, received_ = false;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TESTS_NATIVE_WIRE_LANE_H_
