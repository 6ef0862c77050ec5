// Lanes that are streams on simulated links, in virtual time: each NIC sends at a rate through one queue that data,
// acknowledgements and words of all its lanes share; the stream acknowledges every second segment, the rest after 40 ms,
// and sends again after 200 ms and ever later.
#ifndef FABRICPULSE_TESTS_NATIVE_SIMULATED_STREAMS_H_
#define FABRICPULSE_TESTS_NATIVE_SIMULATED_STREAMS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "core/fencing.h"
#include "core/lane.h"
#include "core/socket_budget.h"
#include "core/wire.h"

namespace fabricpulse::simulated {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kHopNs = 30'000, kAckDelayNs = 40 * kMs, kFirstRtoNs = 200 * kMs;
constexpr uint64_t kSegment = 8948, kHeaderBytes = 66;

inline uint64_t now_ns = 1'000 * kMs;

class Socket;

struct Packet {
  uint64_t at = 0;
  Socket* to = nullptr;
  uint32_t from_host = 0, nic = 0;
  uint64_t first = 0, last = 0, acknowledges = 0;  // first == last: no data
  bool reset = false;
  bool operator<(const Packet& other) const { return at > other.at; }
};

// The NICs of both hosts; NIC n of one reaches NIC n of the other.
struct Fabric {
  uint64_t free_at[2][kMaxNics] = {};
  bool deaf[2][kMaxNics] = {}, mute[2][kMaxNics] = {}, carrier_lost[2][kMaxNics] = {};
  std::priority_queue<Packet> under_way;
  uint64_t dropped = 0;
  bool slow = false;  // from host 0, NIC 0
  // Of each NIC: bytes per second, and how long what it drops would wait.
  double rate = 0;
  uint64_t queue_ns = 0;

  bool dead(uint32_t from, uint32_t nic) const { return mute[from][nic] || deaf[1 - from][nic]; }
  uint64_t waits(uint32_t host, uint32_t nic) const {
    return free_at[host][nic] > now_ns ? free_at[host][nic] - now_ns : 0;
  }
  void send(Packet packet) {
    uint64_t& free = free_at[packet.from_host][packet.nic];
    const uint64_t start = std::max(now_ns, free);
    if (start - now_ns > queue_ns) {
      ++dropped;
      return;
    }
    free =
        start + static_cast<uint64_t>(static_cast<double>(packet.last - packet.first + kHeaderBytes) * 1e9 /
                                      (slow && packet.from_host == 0 && packet.nic == 0 ? rate / 25 : rate));
    packet.at = free + kHopNs;
    under_way.push(packet);
  }
};
inline Fabric fabric;
inline bool lose_fenced = false;  // no kFenced is ever written

struct Frame {
  FrameHeader header;
  HeldState body;
  uint64_t begin = 0, end = 0;  // in the stream
};

// One end of a stream.
class Socket {
 public:
  Socket(uint32_t host, uint32_t nic) : host_(host), nic_(nic) {}
  static void join(const std::shared_ptr<Socket>& a, const std::shared_ptr<Socket>& b) {
    a->peer_ = b;
    b->peer_ = a;
  }

  void write(const FrameHeader& header, const HeldState* body) {
    Frame frame;
    frame.header = header;
    if (body != nullptr) frame.body = *body;
    frame.begin = written_;
    written_ += sizeof(FrameHeader) + header.length;
    frame.end = written_;
    frames_.push_back(frame);
    push();
  }
  // What the handshake has reported.
  void round_trip(uint64_t ns) {
    rtt_ = least_rtt_ = ns;
    deviation_ = ns / 2;
  }
  uint64_t queued() const { return written_ - acknowledged_; }

  void arrive(const Packet& packet) {
    if (packet.reset) ended = true;
    if (ended) return;
    if (packet.first == packet.last) ++answers_;
    if (packet.acknowledges > acknowledged_) {
      acknowledged_ = packet.acknowledges;
      rto_ = kFirstRtoNs;
      timer_ns_ = now_ns;
      while (!stamps_.empty() && stamps_.front().first <= acknowledged_) {
        const uint64_t took = now_ns - stamps_.front().second;
        least_rtt_ = std::min(least_rtt_, took);
        const uint64_t off = took > rtt_ ? took - rtt_ : rtt_ - took;
        deviation_ = rtt_ == 0 ? took / 2 : deviation_ + off / 4 - deviation_ / 4;
        rtt_ = rtt_ == 0 ? took : rtt_ + took / 8 - rtt_ / 8;
        stamps_.pop_front();
      }
      while (!frames_.empty() && frames_.front().end <= std::min(acknowledged_, peer_read()))
        frames_.pop_front();
      push();
    }
    if (packet.first == packet.last) return;
    if (packet.first > arrived_ || packet.last <= arrived_) {
      say_received();  // at once: something is missing, or came again
      return;
    }
    arrived_ = packet.last;
    if (ack_due_ns_ == 0) ack_due_ns_ = now_ns + kAckDelayNs;
    if (arrived_ - said_ >= 2 * kSegment || arrived_ - said_ > kSegment) say_received();
  }

  void step() {
    if (ended) return;
    if (ack_due_ns_ != 0 && now_ns >= ack_due_ns_) say_received();
    if (sent_ > acknowledged_ && now_ns - timer_ns_ >= rto_) {
      rto_ *= 2;
      ++retransmits_;
      sent_ = acknowledged_;
      stamps_.clear();
      push();
    }
  }

  // The next frame that has arrived whole; nullptr: none.
  const Frame* read() {
    auto peer = peer_.lock();
    if (!peer) return nullptr;
    for (const Frame& frame : peer->frames_) {
      if (frame.begin != read_) continue;
      if (frame.end > arrived_) return nullptr;
      read_ = frame.end;
      return &frame;
    }
    return nullptr;
  }
  void reset() {
    ended = true;
    if (auto peer = peer_.lock()) {
      Packet packet{0, peer.get(), host_, nic_, 0, 0, 0, true};
      fabric.send(packet);
    }
  }
  PathSample sample() const {
    PathSample sample;
    sample.valid = true;
    const uint64_t under_way = sent_ - acknowledged_;
    sample.unacknowledged = static_cast<uint32_t>((under_way + kSegment - 1) / kSegment);
    sample.few = under_way <= kSegment;
    sample.acknowledged = acknowledged_;
    sample.sent = segments_;
    sample.answers = answers_;
    sample.rtt_ns = rtt_;
    sample.rtt_deviation_ns = deviation_;
    sample.retransmits = retransmits_;
    return sample;
  }
  uint64_t least_rtt() const { return least_rtt_; }
  uint64_t acknowledged() const { return acknowledged_; }

  bool ended = false;

 private:
  uint64_t peer_read() const {
    auto peer = peer_.lock();
    return peer ? peer->read_ : UINT64_MAX;
  }
  void push() {
    auto peer = peer_.lock();
    if (!peer || ended) return;
    if (sent_ == acknowledged_) timer_ns_ = now_ns;
    while (sent_ < written_) {
      const uint64_t last = std::min(written_, sent_ + kSegment);
      fabric.send({0, peer.get(), host_, nic_, sent_, last, arrived_, false});
      ++segments_;
      stamps_.emplace_back(last, now_ns);
      sent_ = last;
      said_ = arrived_;
      ack_due_ns_ = 0;
    }
  }
  void say_received() {
    auto peer = peer_.lock();
    ack_due_ns_ = 0;
    said_ = arrived_;
    if (peer) fabric.send({0, peer.get(), host_, nic_, 0, 0, arrived_, false});
  }

  const uint32_t host_, nic_;
  std::weak_ptr<Socket> peer_;
  std::deque<Frame> frames_;
  std::deque<std::pair<uint64_t, uint64_t>> stamps_;  // end of a segment, when sent
  uint64_t written_ = 0, sent_ = 0, acknowledged_ = 0, arrived_ = 0, said_ = 0, read_ = 0;
  uint64_t ack_due_ns_ = 0, timer_ns_ = 0, rto_ = kFirstRtoNs;
  uint64_t rtt_ = 0, deviation_ = 0, least_rtt_ = UINT64_MAX, retransmits_ = 0, segments_ = 0, answers_ = 0;
};

inline std::vector<std::weak_ptr<Socket>> sockets;  // all of them

// As TcpLane, over such a stream.
class StreamLane final : public LaneTransport {
 public:
  explicit StreamLane(std::shared_ptr<Socket> socket) : socket_(std::move(socket)) {}
  fp_lane_transport kind() const override { return FP_LANE_TCP; }
  bool post_chunk(const FrameHeader& header, const void*, const RegisteredMemory*) override {
    chunks_.push_back(header);
    ++posted_;
    return true;
  }
  bool post_state(const FrameHeader& header, const HeldState* body) override {
    if (header.type == FrameType::kFenced && lose_fenced) return true;
    if (states_.size() > 12) return false;
    states_.emplace_back(header, body != nullptr ? *body : HeldState{});
    return true;
  }
  uint32_t chunks_taken() const override { return static_cast<uint32_t>(posted_ - chunks_.size()); }
  bool backlog() const override { return !chunks_.empty() || !states_.empty(); }
  bool state_frames_wait() const override { return true; }
  void note_way_back(uint64_t ns) override { budget_.way_back(static_cast<double>(ns) * 1e-9); }
  LaneStatus flush() override {
    if (socket_->ended) return LaneStatus::kFailed;
    LaneStatus status = LaneStatus::kIdle;
    while (backlog()) {
      status = LaneStatus::kProgress;
      if (!states_.empty()) {
        socket_->write(states_.front().first,
                       states_.front().first.length > 0 ? &states_.front().second : nullptr);
        states_.pop_front();
        continue;
      }
      measure();
      if (socket_->queued() >= budget_.limit()) break;
      socket_->write(chunks_.front(), nullptr);
      chunks_.pop_front();
    }
    return status;
  }
  LaneStatus poll(uint32_t lane, LaneSink* sink) override {
    if (socket_->ended) return LaneStatus::kFailed;
    LaneStatus status = LaneStatus::kIdle;
    while (const Frame* frame = closed_ ? nullptr : socket_->read()) {
      status = LaneStatus::kProgress;
      if (frame->header.type == FrameType::kChunk) {
        bool fatal = false;
        if (sink->chunk_begins(lane, frame->header, &fatal) != nullptr) sink->chunk_ends(lane, frame->header);
        if (fatal) return LaneStatus::kProtocol;
      } else if (!sink->state_frame(lane, frame->header, frame->body)) {
        return LaneStatus::kProtocol;
      }
    }
    return status;
  }
  PathSample sample() const override { return closed_ ? PathSample{} : socket_->sample(); }
  int wait_fd() const override { return -1; }
  uint64_t queue_pair() const override { return 1; }
  uint32_t entropy() const override { return 1; }
  void close(bool) override {
    if (!closed_ && !socket_->ended) socket_->reset();
    closed_ = true;
  }

 private:
  void measure() {
    const uint64_t acknowledged = socket_->acknowledged();
    if (acknowledged - measured_ < 1024 * 1024) return;
    if (measured_ns_ != 0)
      budget_.measured(
          static_cast<double>(acknowledged - measured_) * 1e9 / static_cast<double>(now_ns - measured_ns_),
          static_cast<double>(socket_->least_rtt()) * 1e-9);
    measured_ = acknowledged;
    measured_ns_ = now_ns;
  }
  std::shared_ptr<Socket> socket_;
  std::deque<FrameHeader> chunks_;
  std::deque<std::pair<FrameHeader, HeldState>> states_;
  SocketBudget budget_;
  uint64_t posted_ = 0, measured_ = 0, measured_ns_ = 0;
  bool closed_ = false;
};

}  // namespace fabricpulse::simulated

#endif  // FABRICPULSE_TESTS_NATIVE_SIMULATED_STREAMS_H_
