// libFuzzer harness of the meter of a queue pair: any sequence of posts, completions (right, wrong, of either kind),
// resets. The input is steps of one byte and arguments. Whatever a provider or a program does, the meter stays within
// its memory, counts its calls exactly, and never has less than nothing outstanding.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fuzz_standalone.h"
#include "meter.h"

using namespace fabricpulse::interposer;

#define REQUIRE(what)                                       \
  do {                                                      \
    if (!(what)) {                                          \
      fprintf(stderr, "meter: does not hold: %s\n", #what); \
      abort();                                              \
    }                                                       \
  } while (0)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const uint8_t* at = data;
  const uint8_t* end = data + size;
  auto byte = [&]() -> uint8_t { return at < end ? *at++ : 0; };
  auto record = std::make_unique<fp_verbs_queue_pair>();
  memset(record.get(), 0, sizeof(*record));
  Meter meter;
  const uint32_t capacity = byte() % 9;
  meter.open(record.get(), capacity, (byte() & 1) != 0, (byte() & 1) != 0);
  uint64_t now = 0, posts = 0, bytes = 0, errors = 0, good = 0, messages = 0, next = 0, room = 1;
  while (room < capacity) room *= 2;
  while (at < end) {
    now += byte();
    switch (byte() % 5) {
      case 0: {
        const Post post{byte() % 4u, byte(), byte() % 20u, (byte() & 1) != 0};
        const bool tracked = meter.begin(post, now);
        if (byte() % 8 == 0) {
          meter.withdraw(tracked ? 1 : 0);
          break;
        }
        const Message message = meter.confirm(post, now, tracked);
        ++posts;
        bytes += post.bytes;
        if (message.index != kNoMessage) {
          REQUIRE(message.index == next);
          ++next;
          ++messages;
        }
        break;
      }
      case 1: {
        const Completion completion{byte() % 4u, byte() % 30u, byte() % 2u ? 128u + byte() % 2u : byte() % 8u,
                                    byte()};
        (void)meter.completed(completion, static_cast<CompletionQueueKind>(byte() % 3), now);
        if (completion.status == 0) {
          ++good;
        } else {
          ++errors;
        }
        break;
      }
      case 2:
        meter.receives_posted(200);
        meter.receives_withdrawn(byte() % 200);
        break;
      case 3:
        meter.refused();
        break;
      default:
        if (byte() % 8 != 0) break;
        meter.reset();
        next = 0;
        REQUIRE(record->outstanding == 0);
    }
    REQUIRE(record->outstanding <= room && record->outstanding_signaled <= record->outstanding);
    REQUIRE((record->oldest_post_raw_ns == 0 || record->outstanding_signaled > 0) &&
            record->oldest_post_raw_ns <= now);
  }
  const fp_verbs_counters& counters = record->counters;
  uint64_t counted = 0, counted_bytes = 0, counted_errors = 0;
  for (int i = 0; i < FP_VERBS_OPCODES; ++i) {
    counted += counters.posts[i];
    counted_bytes += counters.bytes[i];
  }
  for (uint64_t count : counters.errors) counted_errors += count;
  REQUIRE(counted == posts && counted_bytes == bytes && counted_errors == errors &&
          counters.messages_sent == messages);
  REQUIRE(counters.errors[0] == 0 && counters.receives + counters.completions >= good);
  meter.close();
  return 0;
}
