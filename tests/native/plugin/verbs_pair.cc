// The end of a queue pair: what the device flushes is drained, and destroying it is left to the reaper, also where the
// thread that ends it has no processor for longer than draining may take. A device that flushes nothing gets its queue
// pair destroyed after a bounded number of polls. One that flushes on a thread of this processor gets the processor.
//
// A lane's socket is reset while the driver still destroys another one's queue pair.
//
// Usage: plugin_verbs_pair; exit 1 with a line of what broke.
#include "transport/verbs/verbs_pair.h"

#include <sched.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <utility>

#include "core/owned_fds.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_reaper.h"
#include "verbs_stand_in.h"

using namespace fabricpulse;

namespace {

constexpr uint64_t kPauseNs = 60'000'000;  // more than draining may take

uint64_t paused_ns = 0, steady_ns = 0, polls = 0;
decltype(ib::ContextOps::poll_cq) poll_fabric;
decltype(VerbsLibrary::modify_qp) modify_in_fabric;

// Of a thread that waits for a processor before each look at it.
uint64_t paused_clock() { return paused_ns += kPauseNs; }
uint64_t steady_clock() { return steady_ns += 1000; }

int counted_poll(ib::CompletionQueue* queue, int most, ib::WorkCompletion* out) {
  ++polls;
  return poll_fabric(queue, most, out);
}

// The queue pair that a kernel thread flushes, which has to wait for this processor.
ib::QueuePair* to_flush = nullptr;

bool right(bool what, const char* text) {
  if (!what) fprintf(stderr, "%s\n", text);
  return what;
}

std::unique_ptr<VerbsPair> connected(VerbsDevices* devices) {
  VerbsPort port{devices->all()[0].get(), 1, 1};
  auto here = VerbsPair::make(devices, port, {}, VerbsPair::End::kSender, 5);
  auto there = VerbsPair::make(devices, port, {}, VerbsPair::End::kReceiver, 5);
  if (!here || !there || !there->connect(here->setup())) return nullptr;
  return there;
}

bool drains_after_a_pause(stand_in::Fabric* fabric, VerbsDevices* devices) {
  auto pair = connected(devices);
  if (!right(pair != nullptr, "no queue pair")) return false;
  ib::Context* context = devices->all()[0]->context;
  poll_fabric = std::exchange(context->ops.poll_cq, counted_poll);
  polls = 0;
  pair->end(paused_clock);
  ib::WorkCompletion left;
  bool good = right(fabric->pairs() == 1, "the thread that ends a queue pair after a pause destroys it");
  good &= right(polls > 2, "what was flushed took no more than two polls: nothing is tested");
  good &= right(poll_fabric(pair->completions(), 1, &left) == 0, "not all that was flushed is drained");
  context->ops.poll_cq = poll_fabric;
  pair.reset();
  return good & right(fabric->pairs() == 0, "a queue pair is left over");
}

bool gives_up(stand_in::Fabric* fabric, VerbsDevices* devices, VerbsLibrary* library, uint64_t (*clock)()) {
  auto pair = connected(devices);
  if (!right(pair != nullptr, "no queue pair")) return false;
  modify_in_fabric = library->modify_qp;
  library->modify_qp = [](ib::QueuePair* base, ib::QueuePairAttributes* attributes, int mask) {
    return attributes->state == ib::kErrorState ? 0 : modify_in_fabric(base, attributes, mask);
  };
  pair->end(clock);
  library->modify_qp = modify_in_fabric;
  return right(fabric->pairs() == 0, "a queue pair that is not flushed stays: its peer may still write");
}

bool yields_to_the_device(stand_in::Fabric* fabric, VerbsDevices* devices, VerbsLibrary* library) {
  auto pair = connected(devices);
  if (!right(pair != nullptr, "no queue pair")) return false;
  modify_in_fabric = library->modify_qp;
  library->modify_qp = [](ib::QueuePair* base, ib::QueuePairAttributes* attributes, int mask) {
    if (attributes->state != ib::kErrorState) return modify_in_fabric(base, attributes, mask);
    to_flush = base;
    return 0;
  };
  pair->end(steady_clock);
  library->modify_qp = modify_in_fabric;
  bool good =
      right(to_flush == nullptr, "the thread that ends a queue pair keeps the processor from who flushes it");
  good &= right(fabric->pairs() == 1, "a queue pair that was flushed is destroyed");
  to_flush = nullptr;
  return good;
}

// A driver that takes its time with one queue pair.
struct SlowDriver {
  std::mutex lock;
  std::condition_variable changed;
  bool destroying = false, may_go_on = false;
} driver;
decltype(VerbsLibrary::destroy_qp) destroy_in_fabric;

bool resets_beside_a_slow_driver(VerbsDevices* devices, VerbsLibrary* library) {
  auto first = connected(devices), second = connected(devices);
  if (!right(first != nullptr && second != nullptr, "no queue pair")) return false;
  destroy_in_fabric = library->destroy_qp;
  library->destroy_qp = [](ib::QueuePair* pair) {
    std::unique_lock<std::mutex> held(driver.lock);
    driver.destroying = true;
    driver.changed.notify_all();
    driver.changed.wait(held, [] { return driver.may_go_on; });
    return destroy_in_fabric(pair);
  };
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return false;
  VerbsReaper reaper;
  reaper.start();
  reaper.take(std::move(first), -1, false);
  {
    std::unique_lock<std::mutex> held(driver.lock);
    driver.changed.wait(held, [] { return driver.destroying; });
  }
  reaper.take(std::move(second), own_fd(ends[0]), false);
  char byte;
  const bool good = right(recv(ends[1], &byte, 1, MSG_DONTWAIT) == 0,
                          "a socket stays open until another lane's queue pair is destroyed");
  {
    std::lock_guard<std::mutex> held(driver.lock);
    driver.may_go_on = true;
  }
  driver.changed.notify_all();
  reaper.end_all();
  library->destroy_qp = destroy_in_fabric;
  close_owned(ends[1]);
  return good;
}

}  // namespace

// In place of the C library's.
extern "C" int sched_yield() noexcept {
  if (ib::QueuePair* pair = std::exchange(to_flush, nullptr); pair != nullptr) {
    ib::QueuePairAttributes attributes{};
    attributes.state = ib::kErrorState;
    modify_in_fabric(pair, &attributes, ib::kSetState);
  }
  return 0;
}

int main() {
  stand_in::Fabric fabric(1);
  VerbsLibrary library = fabric.library();
  VerbsDevices devices(&library);
  devices.refresh();
  if (!devices.use(devices.all()[0].get())) return 1;
  const bool good =
      drains_after_a_pause(&fabric, &devices) && gives_up(&fabric, &devices, &library, paused_clock) &&
      gives_up(&fabric, &devices, &library, steady_clock) &&
      yields_to_the_device(&fabric, &devices, &library) && resets_beside_a_slow_driver(&devices, &library);
  return good ? 0 : 1;
}
