// From a key to what belongs to it: read by any thread without a lock, changed under the lock of its owner. Fixed
// size, no allocation. What an entry points to outlives the table, so a reader that has lost a race finds an object
// that it can lock and ask whether it still is the one that was meant.
#ifndef FABRICPULSE_INTERPOSER_TABLE_H_
#define FABRICPULSE_INTERPOSER_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fabricpulse::interposer {

template <typename Value, size_t kSlots>
class Table {
  static_assert((kSlots & (kSlots - 1)) == 0, "a power of two");

 public:
  // key : neither 0 nor 1. nullptr if there is none.
  Value* find(uint64_t key) const {
    for (size_t n = 0, slot = first(key); n < kSlots; ++n, slot = next(slot)) {
      const uint64_t found = slots_[slot].key.load(std::memory_order_acquire);
      if (found == key) return slots_[slot].value.load(std::memory_order_acquire);
      if (found == kEmpty) return nullptr;
    }
    return nullptr;
  }
  // Under the owner's lock. Replaces what is there. False when it is full.
  bool put(uint64_t key, Value* value) {
    size_t place = kSlots;
    for (size_t n = 0, slot = first(key); n < kSlots; ++n, slot = next(slot)) {
      const uint64_t found = slots_[slot].key.load(std::memory_order_relaxed);
      if (found == key) {
        slots_[slot].value.store(value, std::memory_order_release);
        return true;
      }
      if (found <= kGone && place == kSlots) place = slot;
      if (found == kEmpty) break;
    }
    if (place == kSlots) return false;
    slots_[place].value.store(value, std::memory_order_relaxed);
    slots_[place].key.store(key, std::memory_order_release);
    return true;
  }
  // Under the owner's lock.
  void erase(uint64_t key) {
    for (size_t n = 0, slot = first(key); n < kSlots; ++n, slot = next(slot)) {
      const uint64_t found = slots_[slot].key.load(std::memory_order_relaxed);
      if (found == kEmpty) return;
      if (found != key) continue;
      slots_[slot].value.store(nullptr, std::memory_order_relaxed);
      slots_[slot].key.store(kGone, std::memory_order_release);
      // Searches that end behind it need not pass what was left before it.
      if (slots_[next(slot)].key.load(std::memory_order_relaxed) != kEmpty) return;
      for (; slots_[slot].key.load(std::memory_order_relaxed) == kGone; slot = before(slot))
        slots_[slot].key.store(kEmpty, std::memory_order_release);
      return;
    }
  }

 private:
  static constexpr uint64_t kEmpty = 0, kGone = 1;
  static size_t first(uint64_t key) { return ((key * 0x9e3779b97f4a7c15u) >> 32) & (kSlots - 1); }
  static size_t next(size_t slot) { return (slot + 1) & (kSlots - 1); }
  static size_t before(size_t slot) { return (slot - 1) & (kSlots - 1); }
  struct Slot {
    std::atomic<uint64_t> key{0};
    std::atomic<Value*> value{nullptr};
  };
  Slot slots_[kSlots];
};

}  // namespace fabricpulse::interposer

#endif  // FABRICPULSE_INTERPOSER_TABLE_H_
