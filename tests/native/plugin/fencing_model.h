// The fencing state machines with lanes, dials and faults around them: the state of both ends and of the network, and
// every step that is possible from it. tests/native/plugin/fencing_explore.cc walks through all of them.
#ifndef FABRICPULSE_TESTS_NATIVE_FENCING_MODEL_H_
#define FABRICPULSE_TESTS_NATIVE_FENCING_MODEL_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/fencing.h"

namespace fabricpulse::fencing_model {

// Of the walk; set once, before it.
inline uint32_t lanes = 2, chunks = 3, faults = 2;
inline bool one_sided = false, hasty = false, coarse = false, queues = false, lingering = false;

struct Word {
  enum Kind : uint8_t { kChunk, kFence, kState, kFenced } kind;
  uint8_t lane = 0;    // kFence(d)
  uint32_t epoch = 0;  // kFence(d)
  uint64_t chunk = 0;
  HeldState held;
};

// One incarnation of a lane, as the network has it.
struct Incarnation {
  uint32_t epoch = 0;
  bool sender_open = false, receiver_open = false;
  bool cut_forward = false, cut_back = false;
  bool writing = false;   // a chunk has begun to arrive
  bool draining = false;  // one-sided: closed by the receiver, but writes may still land
  uint8_t landed = 0;  // one-sided: words of `forward` that have landed; the receiver has not seen them yet
  std::vector<uint64_t> queued;  // chunks that the sender's end of the lane will read when it has room
  std::vector<Word> forward, back;
};

struct Dial {
  bool hello_under_way = false, reply_under_way = false;
  uint32_t epoch = 0;
  HeldState held;
};

struct Model {
  SenderFencing sender;
  ReceiverFencing receiver;
  std::vector<Incarnation> incarnations[2];  // by lane: those of which something is left
  Dial dials[2];
  uint8_t faults_left = 0;
  uint8_t delivered[8] = {};  // on_held calls by chunk
  bool reported = true;       // the receiver has reported its newest state
  std::string violation;
};

inline Incarnation* current(Model* m, uint32_t l, uint32_t epoch) {
  for (Incarnation& incarnation : m->incarnations[l])
    if (incarnation.epoch == epoch) return &incarnation;
  return nullptr;
}

inline auto on_held(Model* m) {
  return [m](uint64_t chunk, uint8_t) {
    if (++m->delivered[chunk] > 1) m->violation = "a chunk was delivered twice";
    if (!m->receiver.held().contains(chunk))
      m->violation = "a chunk was taken for delivered that is not held";
  };
}

inline void check_queues(Model* m) {
  for (uint32_t l = 0; l < lanes; ++l)
    for (const Incarnation& incarnation : m->incarnations[l])
      for (uint64_t c : incarnation.queued)
        if (m->delivered[c] > 0) m->violation = "a lane still holds a chunk that is delivered";
}
inline auto on_move() {
  return [](uint64_t) {};
}

inline HeldState held_now(const Model& m) {
  HeldState held;
  m.receiver.write(&held);
  return held;
}

inline void send_back(Model* m, uint32_t l, const Word& word) {
  Incarnation* incarnation = current(m, l, m->receiver.epoch(l));
  if (incarnation != nullptr && incarnation->receiver_open && !incarnation->cut_back)
    incarnation->back.push_back(word);
}

inline void say_fenced(Model* m, uint32_t lane, uint32_t epoch) {
  Word word{Word::kFenced, static_cast<uint8_t>(lane), epoch, 0, held_now(*m)};
  for (uint32_t l = 0; l < lanes; ++l)
    if (m->receiver.open(l)) send_back(m, l, word);
  m->reported = false;
}

// A write announces its chunk by the low bits of its number.
inline uint64_t announced(const Model& m, uint64_t chunk) {
  const HeldChunks& held = m.receiver.held();
  constexpr uint64_t kCoarse = kChunkWindow > 1 ? kChunkWindow / 2 : 1;
  if (coarse) return held.base() + (chunk - held.base()) % kCoarse;
  return held.number_of(static_cast<uint32_t>(chunk % kChunkWindow));
}

// The receiver closes a incarnation of a lane, for whatever reason.
inline void receiver_close(Model* m, uint32_t l, uint32_t epoch) {
  uint32_t open_epoch = m->receiver.epoch(l);
  if (m->receiver.close(l, epoch)) {
    Incarnation* incarnation = current(m, l, open_epoch);
    if (incarnation != nullptr) {
      incarnation->receiver_open = false;
      incarnation->draining = one_sided;
      if (one_sided && !hasty) m->receiver.drains(l);
      if (!one_sided) incarnation->forward.clear();
      incarnation->writing = false;
    }
  }
}

inline bool drains(const Model& m, uint32_t l) {
  for (const Incarnation& incarnation : m.incarnations[l])
    if (incarnation.draining) return true;
  return false;
}

// The queue pair is in ERROR and drained: nothing lands by it any more.
inline void drain(Model* m, uint32_t l) {
  m->receiver.drained(l);
  for (Incarnation& incarnation : m->incarnations[l]) {
    if (!incarnation.draining) continue;
    incarnation.draining = false;
    incarnation.landed = 0;
    incarnation.forward.clear();
  }
}

inline void say_fence(Model* m, uint32_t lane) {
  Word word{Word::kFence, static_cast<uint8_t>(lane), m->sender.lane(lane).epoch, 0, {}};
  for (uint32_t l = 0; l < lanes; ++l) {
    if (m->sender.lane(l).phase != SenderFencing::Phase::kUp) continue;
    Incarnation* incarnation = current(m, l, m->sender.lane(l).epoch);
    if (incarnation != nullptr && incarnation->sender_open && !incarnation->cut_forward)
      incarnation->forward.push_back(word);
  }
}

inline void sender_fail(Model* m, uint32_t l) {
  Incarnation* incarnation = current(m, l, m->sender.lane(l).epoch);
  if (!m->sender.fail(l)) return;
  if (incarnation != nullptr) {
    incarnation->sender_open = false;
    incarnation->back.clear();
    if (!lingering) incarnation->queued.clear();
    // What is under way forward may still arrive: that is what the fence is for.
  }
  say_fence(m, l);
}

inline void forget_dead_lives(Model* m) {
  for (uint32_t l = 0; l < lanes; ++l) {
    auto& all = m->incarnations[l];
    for (size_t i = 0; i < all.size();) {
      bool dead = !all[i].sender_open && !all[i].receiver_open && !all[i].draining && all[i].queued.empty();
      if (dead) {
        all.erase(all.begin() + static_cast<long>(i));
      } else {
        ++i;
      }
    }
  }
}

inline bool word_under_way(const Model& m, Word::Kind kind, uint32_t lane) {
  for (uint32_t l = 0; l < lanes; ++l)
    for (const Incarnation& incarnation : m.incarnations[l])
      for (const auto* queue : {&incarnation.forward, &incarnation.back})
        for (const Word& w : *queue)
          if (w.kind == kind && w.lane == lane) return true;
  return false;
}

inline bool state_under_way(const Model& m, uint32_t l) {
  for (const Incarnation& incarnation : m.incarnations[l])
    for (const Word& w : incarnation.back)
      if (w.kind == Word::kState) return true;
  return false;
}

// What happened, in a form that costs nothing until it is printed.
struct Label {
  const char* text;
  uint64_t a, b;
};

struct Step {
  Label label;
  Model after;
};

inline void successors(const Model& from, std::vector<Step>* out) {
  out->clear();
  auto step = [&](const Label& what, auto&& change) {
    out->push_back({what, from});
    change(&out->back().after);
    forget_dead_lives(&out->back().after);
    if (queues) check_queues(&out->back().after);
  };
  auto label = [](const char* text, uint64_t a, uint64_t b = 0) { return Label{text, a, b}; };
  // The sender puts the first chunk that is on no lane on any lane that is up.
  for (uint64_t c = from.sender.base(); c < chunks; ++c) {
    if (c < from.sender.next() &&
        (from.sender.acknowledged(c) || from.sender.lane_of(c) != SenderFencing::kNoLane))
      continue;
    if (c == from.sender.next() && !from.sender.room()) break;
    for (uint32_t l = 0; l < lanes; ++l) {
      if (from.sender.lane(l).phase != SenderFencing::Phase::kUp) continue;
      step(label("send chunk", c, l), [&](Model* m) {
        if (c == m->sender.next()) m->sender.add();
        if (!m->sender.assign(c, l)) m->violation = "the sender's own rule refuses an assignment";
        Incarnation* incarnation = current(m, l, m->sender.lane(l).epoch);
        if (incarnation == nullptr) return;
        if (queues) {
          incarnation->queued.push_back(c);
        } else if (!incarnation->cut_forward) {
          incarnation->forward.push_back({Word::kChunk, 0, 0, c, {}});
        }
      });
    }
    break;
  }
  bool everything = from.sender.base() == chunks;
  for (uint32_t l = 0; l < lanes; ++l) {
    for (const Incarnation& incarnation : from.incarnations[l]) {
      uint32_t epoch = incarnation.epoch;
      if (!incarnation.queued.empty())
        step(label("chunk leaves", incarnation.queued.front(), l), [&](Model* m) {
          Incarnation* now = current(m, l, epoch);
          if (!now->cut_forward && now->receiver_open)
            now->forward.push_back({Word::kChunk, 0, 0, now->queued.front(), {}});
          now->queued.erase(now->queued.begin());
        });
      if (one_sided && (incarnation.receiver_open || incarnation.draining) &&
          incarnation.landed < incarnation.forward.size()) {
        const Word word = incarnation.forward[incarnation.landed];
        step(label("write lands", word.chunk, l), [&](Model* m) {
          ++current(m, l, epoch)->landed;
          if (word.kind == Word::kChunk && m->receiver.held().contains(word.chunk))
            m->violation = "a write landed in memory that the application may have back";
        });
      }
      if (incarnation.draining)
        step(label("drained", l, epoch), [&](Model* m) {
          drain(m, l);
          say_fenced(m, l, epoch);
        });
      const bool seen = !one_sided || incarnation.landed > 0;
      if (incarnation.receiver_open && !incarnation.forward.empty() && seen) {
        const Word word = incarnation.forward.front();
        if (word.kind == Word::kChunk && !incarnation.writing) {
          step(label("chunk begins", word.chunk, l), [&](Model* m) {
            Incarnation* now = current(m, l, epoch);
            const uint64_t number = one_sided ? announced(*m, word.chunk) : word.chunk;
            if (number != word.chunk) m->violation = "a chunk was taken for another";
            switch (m->receiver.begin(l, number)) {
              case ReceiverFencing::Arrival::kTake:
                now->writing = true;
                if (one_sided) {  // it is there as a whole
                  now->writing = false;
                  now->forward.erase(now->forward.begin());
                  --now->landed;
                  m->receiver.complete(l);
                  m->reported = false;
                }
                break;
              case ReceiverFencing::Arrival::kDiscard:
                m->violation = "a chunk arrived that is held";
                break;
              case ReceiverFencing::Arrival::kViolation:
                m->violation = "a chunk arrived against the protocol";
                break;
            }
          });
        } else if (word.kind == Word::kChunk) {
          step(label("chunk ends", word.chunk, l), [&](Model* m) {
            Incarnation* now = current(m, l, epoch);
            now->writing = false;
            now->forward.erase(now->forward.begin());
            m->receiver.complete(l);
            m->reported = false;
          });
        } else {
          step(label("fence arrives", word.lane, l), [&](Model* m) {
            Incarnation* now = current(m, l, epoch);
            now->forward.erase(now->forward.begin());
            if (one_sided) --now->landed;
            receiver_close(m, word.lane, word.epoch);
            if (!drains(*m, word.lane) || hasty) say_fenced(m, word.lane, word.epoch);
          });
        }
      }
      if (incarnation.sender_open && !incarnation.back.empty()) {
        const Word word = incarnation.back.front();
        step(label("word arrives", word.kind, l), [&](Model* m) {
          Incarnation* now = current(m, l, epoch);
          now->back.erase(now->back.begin());
          if (!m->sender.apply(word.held, on_held(m)))
            m->violation = "the sender refuses the receiver's word";
          for (uint32_t other = 0; other < lanes; ++other) {
            if (!m->sender.closed_there(other, word.held)) continue;
            sender_fail(m, other);
            m->sender.fenced(other, word.held.closed[other], word.held, on_held(m), on_move());
          }
        });
      }
      // Failures: free where the incarnation is really broken (or the other end has gone), otherwise they
      // cost a fault.
      bool broken = incarnation.cut_forward || incarnation.cut_back || !incarnation.sender_open ||
                    !incarnation.receiver_open;
      bool in_use =
          from.sender.lane(l).epoch == epoch && from.sender.lane(l).phase == SenderFencing::Phase::kUp;
      if (in_use && incarnation.sender_open && (broken || from.faults_left > 0) && !(everything && !broken))
        step(label("sender fails", l, epoch), [&](Model* m) {
          if (!broken) --m->faults_left;
          sender_fail(m, l);
        });
      if (incarnation.receiver_open && (broken || from.faults_left > 0) && !(everything && !broken))
        step(label("receiver fails", l, epoch), [&](Model* m) {
          if (!broken) --m->faults_left;
          receiver_close(m, l, epoch);
          if (Incarnation* now = current(m, l, epoch)) now->receiver_open = false;
          if (!drains(*m, l) || hasty) say_fenced(m, l, epoch);
        });
      if (from.faults_left > 0 && !everything) {
        for (int how = 1; how <= 3; ++how) {
          bool forward = (how & 1) && !incarnation.cut_forward, back = (how & 2) && !incarnation.cut_back;
          if (!forward && !back) continue;
          step(label("cut", l, static_cast<uint64_t>(how)), [&](Model* m) {
            --m->faults_left;
            Incarnation* now = current(m, l, epoch);
            if (forward) {
              now->cut_forward = true;
              // A chunk that has begun stays half there; the rest is lost.
              now->forward.resize(now->landed);
            }
            if (back) {
              now->cut_back = true;
              now->back.clear();
            }
          });
        }
      }
    }
    const Dial& dial = from.dials[l];
    const auto& view = from.sender.lane(l);
    if (!dial.hello_under_way && !dial.reply_under_way && view.phase != SenderFencing::Phase::kUp &&
        !everything)
      step(label("dial", l), [&](Model* m) {
        m->dials[l].hello_under_way = true;
        m->dials[l].epoch = m->sender.take_epoch(l);
      });
    if (dial.hello_under_way) {
      step(label("hello arrives", l, dial.epoch), [&](Model* m) {
        Dial& d = m->dials[l];
        d.hello_under_way = false;
        receiver_close(m, l, d.epoch - 1);
        drain(m, l);
        if (m->receiver.hello(l, d.epoch)) {
          d.reply_under_way = true;
          d.held = held_now(*m);
          Incarnation incarnation;
          incarnation.epoch = d.epoch;
          incarnation.receiver_open = true;
          incarnation.sender_open =
              true;  // the socket is there; the sender will use it once it has the reply
          m->incarnations[l].push_back(incarnation);
          m->reported = false;
        }
      });
      if (from.faults_left > 0)
        step(label("hello lost", l), [&](Model* m) {
          --m->faults_left;
          m->dials[l].hello_under_way = false;
        });
    }
    if (dial.reply_under_way) {
      step(label("reply arrives", l, dial.epoch), [&](Model* m) {
        Dial& d = m->dials[l];
        d.reply_under_way = false;
        if (!m->sender.joined(l, d.epoch, d.held, on_held(m), on_move()))
          if (Incarnation* now = current(m, l, d.epoch)) now->sender_open = false, now->back.clear();
      });
      if (from.faults_left > 0)
        step(label("reply lost", l), [&](Model* m) {
          --m->faults_left;
          m->dials[l].reply_under_way = false;
          if (Incarnation* now = current(m, l, m->dials[l].epoch))
            now->sender_open = false, now->back.clear();
        });
    }
    // The fence is said again while it has no answer.
    bool carrier = false;
    for (uint32_t other = 0; other < lanes; ++other) {
      const Incarnation* incarnation =
          current(const_cast<Model*>(&from), other, from.sender.lane(other).epoch);
      carrier |= from.sender.lane(other).phase == SenderFencing::Phase::kUp && incarnation != nullptr &&
                 !incarnation->cut_forward && !incarnation->cut_back && incarnation->receiver_open;
    }
    if (view.phase == SenderFencing::Phase::kFencing && carrier && !word_under_way(from, Word::kFence, l) &&
        !word_under_way(from, Word::kFenced, l) && !everything)
      step(label("fence again", l), [&](Model* m) { say_fence(m, l); });
  }
  if (!from.reported)
    for (uint32_t l = 0; l < lanes; ++l)
      // Words are repeated freely; one under way at a time says all there is to say, and keeps the number of
      // states down.
      if (from.receiver.open(l) && !state_under_way(from, l))
        step(label("tell", l), [&](Model* m) {
          m->reported = true;
          send_back(m, l, {Word::kState, 0, 0, 0, held_now(*m)});
        });
}

}  // namespace fabricpulse::fencing_model

#endif  // FABRICPULSE_TESTS_NATIVE_FENCING_MODEL_H_
