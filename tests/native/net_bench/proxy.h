// The proxy of the net benchmark: sends and receives in the order of calls of NCCL's proxy thread, every line of every
// message written and checked.
#pragma once
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "abi/net.h"
#include "cpu_time.h"
#include "library.h"
#include "peer.h"
#include "profiler_events.h"

namespace net_bench {

using namespace fabricpulse::abi;

struct End {
  const NetV12* net = nullptr;
  void *send = nullptr, *recv = nullptr, *send_memory = nullptr, *recv_memory = nullptr;
  std::vector<uint64_t> send_data, recv_data;
};

constexpr size_t kLineWords = 8;  // of 8 bytes, in a cache line

// What the receiver expects in each line of message `number`; the first word tells also whether it is the
// last, of a stream whether kDepth more follow.
inline uint64_t line_word(uint64_t number, size_t at) {
  return ((number + 1) * UINT64_C(0x9e3779b97f4a7c15) + at) << 1;
}

// One direction of one connection as an op of NCCL's proxy.
class Op {
 public:
  Op(End* end, bool sends, size_t bytes, Events* events)
      : end_(end), events_(events), sends_(sends), bytes_(bytes), words_((bytes + 7) / 8) {}

  // One pass; true if something has moved. A send may start message `allowed` - 1 at most.
  bool pass(uint64_t allowed, bool last) {
    if (posted_ < done_ + kDepth && posted_ < allowed && post(last)) return true;
    if (posted_ == done_) return false;
    int finished = 0, size = 0;
    check(end_->net->test(requests_[done_ % kDepth], &finished, &size), "test");
    if (finished != 0) complete();
    return finished != 0;
  }

  uint64_t posted() const { return posted_; }
  uint64_t done() const { return done_; }
  bool saw_last() const { return saw_last_; }  // the receiver has it
  bool sent_last() const { return sent_last_ && filled_ == posted_; }
  uint64_t wrong() const { return wrong_; }
  double touched_s() const { return touched_s_; }
  double longest_gap_s() const { return longest_gap_s_; }  // between two received messages

 private:
  uint64_t* slot(uint64_t number) {
    auto& data = sends_ ? end_->send_data : end_->recv_data;
    return data.data() + (number % kDepth) * words_;
  }

  bool post(bool last) {
    void* request = nullptr;
    if (sends_) {
      if (filled_ == posted_) {
        fill(posted_, last);
        ++filled_;
        sent_last_ = last;
      }
      check(end_->net->isend(end_->send, slot(posted_), bytes_, 0, end_->send_memory, nullptr, &request),
            "isend");
    } else {
      void* data = slot(posted_);
      int tag = 0;
      check(end_->net->irecv(end_->recv, 1, &data, &bytes_, &tag, &end_->recv_memory, nullptr, &request),
            "irecv");
    }
    if (request == nullptr) return false;
    requests_[posted_ % kDepth] = request;
    if (events_ != nullptr) events_->posted(posted_, bytes_);
    ++posted_;
    return true;
  }

  void fill(uint64_t number, bool last) {
    double start = thread_s();
    uint64_t* data = slot(number);
    for (size_t at = 0; at < words_; at += kLineWords) data[at] = line_word(number, at);
    data[0] |= last ? 1 : 0;
    touched_s_ += thread_s() - start;
  }

  void complete() {
    if (events_ != nullptr) events_->completed(done_);
    if (!sends_) {
      double start = thread_s();
      const uint64_t* data = slot(done_);
      uint64_t differs = (data[0] ^ line_word(done_, 0)) & ~UINT64_C(1);
      for (size_t at = kLineWords; at < words_; at += kLineWords) differs |= data[at] ^ line_word(done_, at);
      wrong_ += differs != 0;
      saw_last_ = (data[0] & 1) != 0;
      touched_s_ += thread_s() - start;
      double end = now_s();
      if (done_ > 0) longest_gap_s_ = std::max(longest_gap_s_, end - arrived_s_);
      arrived_s_ = end;
    }
    ++done_;
  }

  End* end_;
  Events* events_;
  const bool sends_;
  size_t bytes_;
  const size_t words_;
  void* requests_[kDepth] = {};
  uint64_t posted_ = 0, done_ = 0, filled_ = 0, wrong_ = 0;
  bool saw_last_ = false, sent_last_ = false;
  double touched_s_ = 0, arrived_s_ = 0, longest_gap_s_ = 0;
};

// Passes that found nothing, and what one costs at least: what some cost more went into something that a later pass
// reports.
class Waiting {
 public:
  void begins() {
    timed_ = ++all_ % kTimeEvery == 0;  // reading the clock costs as much as a pass
    if (!timed_) return;
    ++readings_;
    start_s_ = thread_s();
  }
  void ended(bool moved) {
    passes_ += moved ? 0 : 1;
    if (moved || !timed_) return;
    ++readings_;
    const double took = thread_s() - start_s_ - reading_s_;
    if (least_s_ == 0 || took < least_s_) least_s_ = std::max(took, 0.0);
  }
  uint64_t passes() const { return passes_; }
  // Processor seconds of all of them.
  double seconds() const { return static_cast<double>(passes_) * least_s_; }
  // Processor seconds that timing has cost.
  double readings_s() const { return static_cast<double>(readings_) * reading_s_; }

 private:
  static constexpr uint64_t kTimeEvery = 16;
  const double reading_s_ = reading_s();
  bool timed_ = false;
  double start_s_ = 0, least_s_ = 0;
  uint64_t all_ = 0, passes_ = 0, readings_ = 0;
};

// ncclProxyProgress: gives way when idle, and now and then when not.
class Turn {
 public:
  void end(bool moved) {
    if (moved && ++passes_ < 8) return;
    passes_ = 0;
    if (moved || nap_us_ == 0) {
      sched_yield();
    } else {
      usleep(nap_us_);
    }
  }

 private:
  static uint32_t nap_us() {
    const char* text = getenv("NET_BENCH_NAP_US");
    return text != nullptr ? static_cast<uint32_t>(strtoul(text, nullptr, 10)) : 0;
  }

  const uint32_t nap_us_ = nap_us();
  int passes_ = 0;
};

// The device that is used: the first, or one made of several as NCCL does on hosts whose NICs it merges.
inline int fused(const NetV12* net, int devices) {
  const char* text = getenv("NET_BENCH_FUSED");
  if (text == nullptr) return 0;
  DevicesV12 parts{};
  parts.count = static_cast<int>(strtol(text, nullptr, 10));
  if (parts.count < 1 || parts.count > devices || parts.count > 8)
    fail("NET_BENCH_FUSED: not so many devices");
  for (int i = 0; i < parts.count; ++i) parts.devices[i] = i;
  int made = 0;
  check(net->make_virtual_device(&made, &parts), "makeVDevice");
  return made;
}

// A communicator's connection: both directions, so that latency can go back and forth.
class Communicator {
 public:
  Communicator(const NetV12* net, uint64_t number, bool receives, size_t bytes, int peer)
      : events_(!receives),
        out_(&end_, true, bytes, receives ? nullptr : &events_),
        in_(&end_, false, bytes, receives ? &events_ : nullptr) {
    end_.net = net;
    void* context = nullptr;
    Config config{-1};
    check(net->init(&context, number, &config, log_line, nullptr), "init");
    int devices = 0;
    check(net->devices(&devices), "devices");
    if (devices < 1) fail("the net has no device");
    const int device = fused(net, devices);
    alignas(8) uint8_t mine[kHandleBytes] = {}, theirs[kHandleBytes] = {};
    void* listener = nullptr;
    check(net->listen(context, device, mine, &listener), "listen");
    swap_bytes(peer, mine, theirs, sizeof(mine));
    for (double start = now_s(); end_.send == nullptr || end_.recv == nullptr;) {
      void* unused = nullptr;
      if (end_.send == nullptr) check(net->connect(context, device, theirs, &end_.send, &unused), "connect");
      if (end_.recv == nullptr) check(net->accept(listener, &end_.recv, &unused), "accept");
      if (now_s() - start > 20) fail("no connection after 20 s");
    }
    size_t words = (bytes + 7) / 8;
    end_.send_data.assign(words * kDepth, 7);
    end_.recv_data.assign(words * kDepth, 0);
    check(net->reg_mr(end_.send, end_.send_data.data(), end_.send_data.size() * 8, kPointerHost,
                      &end_.send_memory),
          "regMr");
    check(net->reg_mr(end_.recv, end_.recv_data.data(), end_.recv_data.size() * 8, kPointerHost,
                      &end_.recv_memory),
          "regMr");
  }

  Op& out() { return out_; }
  Op& in() { return in_; }
  double touched_s() const { return in_.touched_s() + out_.touched_s(); }
  double profiler_s() const { return events_.used_s(); }

  void post_receives() {
    while (in_.posted() < kDepth) in_.pass(UINT64_MAX, false);
  }

  // One way, as fast as it goes, until the sender's time is over. Then kDepth messages more, as many as may be posted:
  // so the receiver ends as NCCL's proxy ends an operation, with no receive left, and asks nothing more.
  void stream(bool receives, double start, double seconds) {
    Turn turn;
    auto one_pass = [&](auto&& pass) {
      waiting_.begins();
      const bool moved = pass();
      turn.end(moved);
      waiting_.ended(moved);
    };
    uint64_t total = UINT64_MAX;
    if (receives) {
      while (in_.done() < total) {
        one_pass([&] { return in_.pass(total, false); });
        if (total == UINT64_MAX && in_.saw_last()) total = in_.done() + kDepth;
      }
    } else {
      while (out_.done() < total) {
        one_pass([&] { return out_.pass(total, total == UINT64_MAX && now_s() - start >= seconds); });
        if (total == UINT64_MAX && out_.sent_last()) total = out_.posted() + kDepth;
      }
    }
  }
  const Waiting& waiting() const { return waiting_; }

  // To and fro; half a round trip of each.
  std::vector<double> bounce(bool receives, double start, double seconds) {
    std::vector<double> rounds;
    Turn turn;
    uint64_t round = 0;
    bool more = true;
    while (more) {
      double before = now_s();
      if (!receives) more = before - start < seconds;
      // The one side sends first, the other answers with what it got: go on, or that was the last.
      auto until = [&](Op* op, uint64_t count, uint64_t may_send) {
        while (op->done() < count) {
          bool moved = out_.pass(may_send, !more);
          moved |= in_.pass(UINT64_MAX, false);
          turn.end(moved);
        }
      };
      if (!receives) {
        until(&in_, round + 1, round + 1);
        rounds.push_back((now_s() - before) / 2);
      } else {
        until(&in_, round + 1, round);
        more = !in_.saw_last();
        if (more) {
          // The answer leaves now; that it has left is seen while the next round is waited for.
          while (out_.posted() < round + 1) turn.end(out_.pass(round + 1, false));
        } else {
          until(&out_, round + 1, round + 1);
        }
      }
      ++round;
    }
    while (out_.done() < out_.posted()) turn.end(out_.pass(out_.posted(), false));
    return rounds;
  }

 private:
  End end_;
  Events events_;
  Op out_, in_;
  Waiting waiting_;
};

}  // namespace net_bench
