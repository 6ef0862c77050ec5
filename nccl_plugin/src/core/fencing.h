// Exactly once, over lanes that fail in any order: the two state machines of a connection.
//
// Pure: no clock, no I/O, no allocation. tests/native/plugin/fencing_explore.cc walks through every
// interleaving.
//
// Rules.
//  1. A chunk is on at most one lane at a time. The sender puts it on another lane only after the receiver
//     has reported that the old lane, up to that epoch, is closed (kFenced, or the reply to a hello with a higher
//     epoch) and that it does not hold the chunk.
//  2. The receiver closes a lane before it reports so. After that no byte of the old epoch can be written. A lane by
//     which the peer writes on its own (queue pairs) drains in between, and does not count as closed meanwhile.
//  3. The set of chunks that the receiver reports only grows, so any order, repetition or loss of its reports is
//     harmless.
//  4. Epochs of a lane only grow; a hello of an old epoch is refused.
//  5. A lane that fails at the sender sends nothing more of what it was given.
// From 1 and 2 follows that a chunk that is held is never written again, from 1 and 5 that no lane still has to read
// it: its memory may go back to the application, at either end.
#ifndef FABRICPULSE_CORE_FENCING_H_
#define FABRICPULSE_CORE_FENCING_H_

#include <algorithm>
#include <cstdint>

#include "core/wire.h"

namespace fabricpulse {

// The set of chunks that a receiver holds: everything below `base` and a window above it.
class HeldChunks {
 public:
  bool contains(uint64_t chunk) const {
    if (chunk < base_) return true;
    if (chunk - base_ >= kChunkWindow) return false;
    return bit(chunk);
  }
  bool in_window(uint64_t chunk) const { return chunk >= base_ && chunk - base_ < kChunkWindow; }
  // The chunk in the window with this number modulo kChunkWindow. One that is on a lane and not held is in the window:
  // its sender has not seen it held, and has nothing under way that is a window further.
  uint64_t number_of(uint32_t index) const { return base_ + (index - base_) % kChunkWindow; }

  void add(uint64_t chunk) {
    if (!in_window(chunk)) return;
    words_[(chunk / 64) % kWords] |= UINT64_C(1) << (chunk % 64);
    while (bit(base_)) {
      words_[(base_ / 64) % kWords] &= ~(UINT64_C(1) << (base_ % 64));
      ++base_;
    }
  }

  uint64_t base() const { return base_; }

  void write(HeldState* state) const {
    state->base = base_;
    for (uint32_t w = 0; w < kWords; ++w) {
      // Bit i of the wire form is chunk base + i: join two words of the ring.
      uint64_t first = base_ + w * 64;
      uint32_t index = (first / 64) % kWords, shift = first % 64;
      uint64_t low = words_[index] >> shift;
      uint64_t high = shift ? words_[(index + 1) % kWords] << (64 - shift) : 0;
      state->bitmap[w] = low | high;
    }
  }

 private:
  static constexpr uint32_t kWords = (kChunkWindow + 63) / 64;
  bool bit(uint64_t chunk) const { return (words_[(chunk / 64) % kWords] >> (chunk % 64)) & 1; }

  uint64_t base_ = 0;
  uint64_t words_[kWords] = {};  // ring: bit of chunk c at c % kChunkWindow
};

inline bool held_state_contains(const HeldState& state, uint64_t chunk) {
  if (chunk < state.base) return true;
  uint64_t i = chunk - state.base;
  return i < kChunkWindow && ((state.bitmap[i / 64] >> (i % 64)) & 1);
}

// The sender's side: where each chunk is.
class SenderFencing {
 public:
  enum class Phase : uint8_t { kDown, kUp, kFencing };
  static constexpr uint8_t kNoLane = 0xff;

  struct LaneView {
    Phase phase = Phase::kDown;
    uint32_t epoch = 0;        // of the incarnation that is up or being fenced
    uint32_t next_epoch = 1;   // for the next hello
    uint32_t outstanding = 0;  // chunks on it, not acknowledged
  };

  uint64_t base() const { return base_; }
  uint64_t next() const { return next_; }
  bool room() const { return next_ - base_ < kChunkWindow; }
  const LaneView& lane(uint32_t l) const { return lanes_[l]; }
  bool acknowledged(uint64_t chunk) const {
    return chunk < base_ || slots_[chunk % kChunkWindow].acknowledged;
  }
  uint8_t lane_of(uint64_t chunk) const { return slots_[chunk % kChunkWindow].lane; }

  // A new chunk, on no lane yet. Only if room().
  uint64_t add() {
    slots_[next_ % kChunkWindow] = Slot{};
    return next_++;
  }

  // The chunk is handed to a lane that is up. False if that would break rule 1.
  bool assign(uint64_t chunk, uint32_t l) {
    if (chunk < base_ || chunk >= next_ || lanes_[l].phase != Phase::kUp) return false;
    Slot& slot = slots_[chunk % kChunkWindow];
    if (slot.acknowledged || slot.lane != kNoLane) return false;
    slot.lane = static_cast<uint8_t>(l);
    ++lanes_[l].outstanding;
    return true;
  }

  // The receiver's state, from any lane and of any age. Calls on_held(chunk, lane) once for each chunk that is
  // new. False if it names chunks that were never made: not a valid peer.
  template <typename F>
  bool apply(const HeldState& state, F&& on_held) {
    if (state.base > next_) return false;
    for (uint64_t c = base_; c < next_; ++c) {
      Slot& slot = slots_[c % kChunkWindow];
      if (slot.acknowledged || !held_state_contains(state, c)) continue;
      slot.acknowledged = true;
      uint8_t l = slot.lane;
      slot.lane = kNoLane;
      if (l != kNoLane) --lanes_[l].outstanding;
      on_held(c, l);
    }
    while (base_ < next_ && slots_[base_ % kChunkWindow].acknowledged) ++base_;
    return true;
  }

  // The lane is not to be used any more; its chunks stay where they are until the receiver has reported.
  // True if it was up.
  bool fail(uint32_t l) {
    if (lanes_[l].phase != Phase::kUp) return false;
    lanes_[l].phase = Phase::kFencing;
    return true;
  }

  // kFenced: the receiver has closed lane l up to `epoch`; `state` was taken after that. Calls on_move(chunk)
  // for each chunk that has to be sent again. True if the lane went down by it.
  template <typename F, typename G>
  bool fenced(uint32_t l, uint32_t epoch, const HeldState& state, F&& on_held, G&& on_move) {
    if (!apply(state, on_held)) return false;
    LaneView& lane = lanes_[l];
    if (epoch < lane.epoch || epoch >= lane.next_epoch) return false;
    lane.epoch = epoch;  // a reply to a hello of this epoch that is still under way must not revive it
    if (lane.phase == Phase::kDown) return false;
    lane.phase = Phase::kDown;
    release(l, on_move);
    return true;
  }

  // The receiver reports that the lane's present incarnation is closed there, and this end has not handled
  // it yet: due is fail() if it is up, then fenced(l, state.closed[l], ...).
  bool closed_there(uint32_t l, const HeldState& state) const {
    const LaneView& lane = lanes_[l];
    return lane.phase != Phase::kDown && state.closed[l] >= lane.epoch && state.closed[l] < lane.next_epoch;
  }

  // An epoch number for a hello; never given twice.
  uint32_t take_epoch(uint32_t l) { return lanes_[l].next_epoch++; }

  // The receiver has accepted a hello of this epoch: every older incarnation of the lane is closed there.
  // False if the answer is out of date (a newer incarnation is up).
  template <typename F, typename G>
  bool joined(uint32_t l, uint32_t epoch, const HeldState& state, F&& on_held, G&& on_move) {
    LaneView& lane = lanes_[l];
    if (lane.phase == Phase::kUp || epoch <= lane.epoch || epoch >= lane.next_epoch) return false;
    if (!apply(state, on_held)) return false;
    release(l, on_move);
    lane.phase = Phase::kUp;
    lane.epoch = epoch;
    return true;
  }

 private:
  struct Slot {
    uint8_t lane = kNoLane;
    bool acknowledged = false;
  };

  template <typename G>
  void release(uint32_t l, G&& on_move) {
    for (uint64_t c = base_; c < next_; ++c) {
      Slot& slot = slots_[c % kChunkWindow];
      if (slot.lane != l) continue;
      slot.lane = kNoLane;
      --lanes_[l].outstanding;
      on_move(c);
    }
  }

  uint64_t base_ = 0, next_ = 0;
  Slot slots_[kChunkWindow];
  LaneView lanes_[kMaxLanes];
};

// The receiver's side: which lanes may write, and what has arrived.
class ReceiverFencing {
 public:
  enum class Arrival : uint8_t { kTake, kDiscard, kViolation };
  static constexpr uint64_t kNone = UINT64_MAX;

  const HeldChunks& held() const { return held_; }
  // The receiver's present state: each lane that it names as closed is closed.
  void write(HeldState* state) const {
    held_.write(state);
    for (uint32_t l = 0; l < kMaxLanes; ++l) {
      const LaneView& lane = lanes_[l];
      state->closed[l] = lane.draining ? std::min(lane.closed, lane.epoch - 1) : lane.closed;
    }
  }
  bool open(uint32_t l) const { return lanes_[l].open; }
  uint32_t epoch(uint32_t l) const { return lanes_[l].epoch; }
  // With `open` and `epoch` all of a lane, for who explores the states.
  uint32_t closed_epoch(uint32_t l) const { return lanes_[l].closed; }

  // A hello. If true, the caller closes the transport of the older incarnation (before it takes the state for
  // the reply).
  bool hello(uint32_t l, uint32_t epoch) {
    LaneView& lane = lanes_[l];
    if (epoch <= lane.closed || epoch <= lane.epoch) return false;
    close(l, epoch - 1);
    lane.open = true;
    lane.epoch = epoch;
    return true;
  }

  // kFence, or this end's own decision. The caller closes the transport if the lane was open (true), and only
  // then takes the state for kFenced.
  bool close(uint32_t l, uint32_t epoch) {
    LaneView& lane = lanes_[l];
    if (epoch > lane.closed) lane.closed = epoch;
    if (!lane.open || lane.epoch > epoch) return false;
    lane.open = false;
    lane.writing = kNone;
    return true;
  }

  // The peer may still write by the incarnation that was closed last (one-sided lanes): until drained() it does not
  // count as closed, whoever asks.
  void drains(uint32_t l) { lanes_[l].draining = true; }
  void drained(uint32_t l) { lanes_[l].draining = false; }
  bool draining(uint32_t l) const { return lanes_[l].draining; }

  // The first byte of a chunk is here. kTake: write it to its place, then call complete().
  Arrival begin(uint32_t l, uint64_t chunk) {
    LaneView& lane = lanes_[l];
    if (!lane.open || lane.writing != kNone) return Arrival::kViolation;
    if (held_.contains(chunk)) return Arrival::kDiscard;
    if (!held_.in_window(chunk)) return Arrival::kViolation;
    for (const LaneView& other : lanes_)
      if (other.open && other.writing == chunk) return Arrival::kViolation;
    lane.writing = chunk;
    return Arrival::kTake;
  }

  void complete(uint32_t l) {
    held_.add(lanes_[l].writing);
    lanes_[l].writing = kNone;
  }

 private:
  struct LaneView {
    bool open = false, draining = false;
    uint32_t epoch = 0;   // of the incarnation that is or was open
    uint32_t closed = 0;  // incarnations up to this one are closed for good
    uint64_t writing = kNone;
  };
  HeldChunks held_;
  LaneView lanes_[kMaxLanes];
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_FENCING_H_
