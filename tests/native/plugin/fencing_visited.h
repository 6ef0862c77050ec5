// Which states of the model (fencing_model.h) have been seen: a state as words, as a key of 128 bits, and the set of keys.
#ifndef FABRICPULSE_TESTS_NATIVE_FENCING_VISITED_H_
#define FABRICPULSE_TESTS_NATIVE_FENCING_VISITED_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "fencing_model.h"

namespace fabricpulse::fencing_model {

// Written for each state anew.
class Words {
 public:
  void clear() { count_ = 0; }
  void add(uint64_t value) {
    if (count_ == words_.size()) abort();  // with so few lanes, chunks and faults there are not so many
    words_[count_++] = value;
  }
  const uint64_t* begin() const { return words_.data(); }
  const uint64_t* end() const { return words_.data() + count_; }
  bool operator<(const Words& other) const {
    return std::lexicographical_compare(begin(), end(), other.begin(), other.end());
  }

 private:
  std::array<uint64_t, 4096> words_;
  size_t count_ = 0;
};

inline void put(Words* out, uint64_t value) { out->add(value); }

inline void put_held(Words* out, const HeldState& held, const std::array<uint32_t, 2>& order) {
  put(out, held.base);
  put(out, held.bitmap[0]);
  for (uint32_t i = 0; i < std::min<uint32_t>(lanes, 2); ++i) put(out, held.closed[order[i]]);
}

// The state as words, with the lanes in the given order.
inline void digest_in_order(const Model& m, const std::array<uint32_t, 2>& order, Words* out) {
  out->clear();
  const uint32_t count = std::min<uint32_t>(lanes, 2);
  auto place = [&](uint32_t l) -> uint64_t {
    for (uint32_t i = 0; i < count; ++i)
      if (order[i] == l) return i;
    return 0xff;
  };
  put(out,
      m.sender.base() | m.sender.next() << 16 | uint64_t{m.faults_left} << 32 | uint64_t{m.reported} << 40);
  for (uint64_t c = 0; c < m.sender.next(); ++c)
    put(out, place(m.sender.lane_of(c)) | uint64_t{m.sender.acknowledged(c)} << 8 |
                 uint64_t{m.delivered[c]} << 16 | uint64_t{m.receiver.held().contains(c)} << 24);
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t l = order[i];
    const auto& view = m.sender.lane(l);
    put(out, static_cast<uint64_t>(view.phase) | uint64_t{view.epoch} << 8 | uint64_t{view.next_epoch} << 24);
    put(out, uint64_t{m.receiver.open(l)} | uint64_t{m.receiver.epoch(l)} << 8 |
                 uint64_t{m.receiver.closed_epoch(l)} << 24);
    const Dial& d = m.dials[l];
    put(out, uint64_t{d.hello_under_way} | uint64_t{d.reply_under_way} << 1 | uint64_t{d.epoch} << 8);
    if (d.reply_under_way) put_held(out, d.held, order);
    for (const Incarnation& incarnation : m.incarnations[l]) {
      put(out, incarnation.epoch | uint64_t{incarnation.sender_open} << 32 |
                   uint64_t{incarnation.receiver_open} << 33 | uint64_t{incarnation.cut_forward} << 34 |
                   uint64_t{incarnation.cut_back} << 35 | uint64_t{incarnation.writing} << 36 |
                   uint64_t{incarnation.draining} << 37 | uint64_t{incarnation.landed} << 56 |
                   uint64_t{incarnation.forward.size()} << 40 | uint64_t{incarnation.back.size()} << 48);
      uint64_t waits = incarnation.queued.size();  // chunks are few
      for (uint64_t c : incarnation.queued) waits = waits << 4 | c;
      put(out, waits);
      for (const auto* queue : {&incarnation.forward, &incarnation.back})
        for (const Word& w : *queue) {
          uint64_t about = w.kind == Word::kFence || w.kind == Word::kFenced ? place(w.lane) : 0;
          put(out, uint64_t{w.kind} | about << 8 | uint64_t{w.epoch} << 16 | w.chunk << 40);
          if (w.kind == Word::kState || w.kind == Word::kFenced) put_held(out, w.held, order);
        }
    }
    put(out, UINT64_MAX);  // no incarnation begins so
  }
}

// 128 bits of it; that two of 10^8 states share them has a chance below 10^-22. Lanes are alike, so a state
// and its mirror image are one.
struct Key {
  uint64_t low, high;
  bool operator==(const Key& other) const { return low == other.low && high == other.high; }
};

// The keys seen. Open addressing, at most half full: millions are asked for at random, and each costs one cache miss.
class Known {
 public:
  // True if the key is new.
  bool insert(const Key& key) {
    if (2 * (size_ + 1) > slots_.size()) grow();
    if (!place(key)) return false;
    ++size_;
    return true;
  }
  size_t size() const { return size_; }

 private:
  static constexpr Key kEmpty{0, 0};

  bool place(const Key& key) {
    size_t at = key.low & (slots_.size() - 1);
    for (; !(slots_[at] == kEmpty); at = (at + 1) & (slots_.size() - 1))
      if (slots_[at] == key) return false;
    slots_[at] = key;
    return true;
  }
  void grow() {
    std::vector<Key> old(std::max<size_t>(2 * slots_.size(), size_t{1} << 16), kEmpty);
    old.swap(slots_);
    for (const Key& key : old)
      if (!(key == kEmpty)) place(key);
  }

  std::vector<Key> slots_;
  size_t size_ = 0;
};

inline Key digest(const Model& m) {
  static Words text, mirror;
  constexpr std::array<uint32_t, 2> kForward{0, 1}, kMirror{1, 0};
  const Words* found = &text;
  digest_in_order(m, kForward, &text);
  if (lanes == 2) {
    digest_in_order(m, kMirror, &mirror);
    if (mirror < text) found = &mirror;
  }
  uint64_t low = UINT64_C(0x9e3779b97f4a7c15), high = UINT64_C(0xc2b2ae3d27d4eb4f);
  for (uint64_t word : *found) {
    low = (low ^ word) * UINT64_C(0xff51afd7ed558ccd);
    low ^= low >> 32;
    high = (high + word) * UINT64_C(0xc4ceb9fe1a85ec53);
    high ^= high >> 29;
  }
  return {low, high};
}

}  // namespace fabricpulse::fencing_model

#endif  // FABRICPULSE_TESTS_NATIVE_FENCING_VISITED_H_
