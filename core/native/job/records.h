// Records in a file that other processes map: how one is written under its seqlock, and read by its own process. The
// layouts are those of the libraries (fabricpulse/plugin_telemetry.h, fabricpulse/verbs_telemetry.h).
#ifndef FABRICPULSE_JOB_RECORDS_H_
#define FABRICPULSE_JOB_RECORDS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

namespace fabricpulse {

// Where a table may begin: the next multiple of a cache line, bytes.
constexpr size_t aligned(size_t offset) { return (offset + 63) & ~static_cast<size_t>(63); }

// Orders the odd sequence before the fields that follow. ThreadSanitizer does not know fences; the readers,
// whom the fence is for, are other processes, so it has nothing to say about them anyway.
inline void fence_release() {
#ifndef __SANITIZE_THREAD__
  __atomic_thread_fence(__ATOMIC_RELEASE);
#endif
}
inline void fence_acquire() {
#ifndef __SANITIZE_THREAD__
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
#endif
}

// The sequence of a seqlock is odd while this exists: readers wait or try again.
template <typename Sequence>
class SequenceChange {
 public:
  explicit SequenceChange(Sequence* sequence) : sequence_(sequence) {
    __atomic_store_n(sequence_, *sequence_ + 1, __ATOMIC_RELAXED);
    fence_release();
  }
  ~SequenceChange() { __atomic_store_n(sequence_, *sequence_ + 1, __ATOMIC_RELEASE); }
  SequenceChange(const SequenceChange&) = delete;
  SequenceChange& operator=(const SequenceChange&) = delete;

 private:
  Sequence* sequence_;
};

// A change of one record.
template <typename Record>
struct RecordChange : SequenceChange<decltype(Record::sequence)> {
  explicit RecordChange(Record* record) : SequenceChange<decltype(Record::sequence)>(&record->sequence) {}
};

// Births and deaths: a pass of a reader over the tables of a file that saw one is taken again.
template <typename Header>
struct TablesChange : SequenceChange<decltype(Header::tables_sequence)> {
  explicit TablesChange(Header* header)
      : SequenceChange<decltype(Header::tables_sequence)>(&header->tables_sequence) {}
};

// Copies a record of this process that another thread may be writing. A copy that stays torn after some tries
// is taken as it is: for people to look at, better than none. ThreadSanitizer cannot know that the sequence makes it
// safe.
template <typename Record>
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize_thread, noinline))
#endif
void read_record(const Record* from, Record* to) {
  static_assert(sizeof(Record) % sizeof(uint32_t) == 0, "copied in words");
  typedef uint32_t __attribute__((may_alias)) Word;
  const auto* source = reinterpret_cast<const volatile Word*>(from);
  auto* words = reinterpret_cast<Word*>(to);
  for (int tries = 0; tries < 64; ++tries) {
    uint32_t before = __atomic_load_n(&from->sequence, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < sizeof(Record) / sizeof(uint32_t); ++i) words[i] = source[i];
    fence_acquire();
    if (!(before & 1) && __atomic_load_n(&from->sequence, __ATOMIC_RELAXED) == before) return;
  }
}

// The same of some fields alone, where to copy a whole record would cost more than what is done with it. fields: member
// of the record, and where its value goes.
template <typename Record, typename... Value>
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize_thread, noinline))
#endif
void read_fields(const Record* from, std::pair<Value Record::*, Value*>... fields) {
  for (int tries = 0; tries < 64; ++tries) {
    uint32_t before = __atomic_load_n(&from->sequence, __ATOMIC_ACQUIRE);
    ((*fields.second = *static_cast<const volatile Value*>(&(from->*fields.first))), ...);
    fence_acquire();
    if (!(before & 1) && __atomic_load_n(&from->sequence, __ATOMIC_RELAXED) == before) return;
  }
}

// Into a field of a record: cut off where it does not fit, always ended by a zero, the rest zeros.
template <size_t N>
inline void copy_text(char (&to)[N], const char* from) {
  // Not strnlen and memcpy: inlined for a literal, compilers tell of them that they may read beyond its end.
  size_t size = 0;
  for (; size < N - 1 && from[size] != 0; ++size) to[size] = from[size];
  memset(to + size, 0, N - size);
}

// A free record becomes another object's: all zeros but for `sequence`, which stays odd under the RecordChange that the
// caller holds, and `generation`, which counts on.
template <typename Record>
inline void renew(Record* record) {
  constexpr size_t kSequence = sizeof(record->sequence);
  static_assert(offsetof(Record, sequence) == 0, "what follows it is cleared");
  const auto generation = record->generation;
  memset(reinterpret_cast<uint8_t*>(record) + kSequence, 0, sizeof(Record) - kSequence);
  record->generation = generation + 1;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_JOB_RECORDS_H_
