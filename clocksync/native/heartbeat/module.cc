// The heartbeat of the clock page: while it goes on, readers know that somebody would notice what contradicts fleet time.
//
// A thread of its own, which never waits for the interpreter: it has to come in time, 33 times a second, and its wake-ups
// are to cost next to nothing. It lives with the process, and goes on only for as long as the event loop says, so that
// neither a sidecar that is stopped or dead nor one that hangs keeps a page synchronized.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>

#include "fabricpulse/clock_page.h"

namespace nb = nanobind;

namespace {

constexpr std::chrono::milliseconds kEvery{30};
// Two probe intervals at the usual rate: the time within which causality shows a pause. A thread that waits for its core
// like others is late on a busy host, which then would read holdover now and then.
constexpr std::int64_t kWatchedNs = 40'000'000, kWatchedUnprivilegedNs = 100'000'000;

class Heartbeat {
 public:
  using Word = nb::ndarray<std::int64_t, nb::shape<1>, nb::device::cpu>;

  explicit Heartbeat(Word word) : word_(std::move(word)), word_ns_(word_.data()) {
    // Signals are for the interpreter's threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    const sched_param lowest{1};
    if (pthread_setschedparam(thread_.native_handle(), SCHED_FIFO, &lowest) == 0) watched_ns_ = kWatchedNs;
  }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  ~Heartbeat() { stop(); }

  void go_on_until(std::int64_t raw_ns) {
    until_ns_ = raw_ns;
    beat();
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    do {
      // A process that was stopped, or had no core, has to look first at what happened meanwhile.
      const std::int64_t shown_ns = __atomic_load_n(word_ns_, __ATOMIC_RELAXED);
      if (fp_raw_clock_now() > shown_ns) until_ns_ = std::max<std::int64_t>(shown_ns, 1);
      beat();
    } while (!wake_.wait_for(lock, kEvery, [this] { return stopped_; }));
  }

  void beat() {
    const std::int64_t ahead_ns = fp_raw_clock_now() + watched_ns_;
    __atomic_store_n(word_ns_, std::min(ahead_ns, until_ns_.load()), __ATOMIC_RELAXED);
  }

  const Word word_;  // keeps the mapping
  std::int64_t* const word_ns_;
  std::atomic<std::int64_t> until_ns_{1}, watched_ns_{kWatchedUnprivilegedNs};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace

NB_MODULE(_heartbeat, m) {
  nb::class_<Heartbeat>(
      m, "Heartbeat",
      "Keeps `word` of a clock page (ClockPageWriter.watched_until_ns) ahead of CLOCK_MONOTONIC_RAW, "
      "from a thread: by 40 ms at most, by 100 ms where no real-time priority is permitted.")
      .def(nb::init<Heartbeat::Word>(), nb::arg("word"))
      .def("go_on_until", &Heartbeat::go_on_until, nb::arg("raw_ns"),
           "And no further than this; nowhere at first.")
      .def("stop", &Heartbeat::stop, "Leaves the word as it is.");
}
