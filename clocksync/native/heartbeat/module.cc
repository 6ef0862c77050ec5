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
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "fabricpulse/clock_page.h"

namespace nb = nanobind;

namespace {

constexpr std::chrono::milliseconds kEvery{30};
// Two probe intervals at the usual rate: the time within which causality shows a pause. A thread that waits for its core
// like others is late on a busy host, which then would read holdover now and then, each time until the next tick. That
// is not woken up for it: an engine that was stopped, too, has yet to see the packets that show what happened.
constexpr std::int64_t kWatchedNs = 40'000'000, kWatchedUnprivilegedNs = 100'000'000;

class Heartbeat {
 public:
  using Word = nb::ndarray<std::int64_t, nb::shape<1>, nb::device::cpu>;

  explicit Heartbeat(Word word) : word_(std::move(word)), word_ns_(word_.data()) {
    start();
    const sched_param lowest{1};
    if (pthread_setschedparam(thread_.native_handle(), SCHED_FIFO, &lowest) == 0) watched_ns_ = kWatchedNs;
  }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  ~Heartbeat() { stop(); }

  void go_on_until(std::int64_t raw_ns) {
    // The thread looks and beats under the lock as well: else what it cuts off might be what has just been granted.
    const std::lock_guard lock(mutex_);
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
  // Throws std::system_error where there can be no other thread.
  void start() {
    // Signals are for the interpreter's threads. The mask is as before also where the thread cannot be made.
    struct SignalsBlocked {
      SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
      }
      ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
      sigset_t before;
    } blocked;
    thread_ = std::thread([this] { run(); });
  }

  void run() {
    std::unique_lock lock(mutex_);
    do {
      // A process that was stopped, or had no core, has to look first at what happened meanwhile: with the next tick.
      const std::int64_t shown_ns = __atomic_load_n(word_ns_, __ATOMIC_RELAXED);
      if (fp_raw_clock_now() > shown_ns) until_ns_ = std::max<std::int64_t>(shown_ns, 1);
      beat();
    } while (!wake_.wait_for(lock, kEvery, [this] { return stopped_; }));
  }

  // Under the lock.
  void beat() {
    const std::int64_t ahead_ns = fp_raw_clock_now() + watched_ns_;
    __atomic_store_n(word_ns_, std::min(ahead_ns, until_ns_), __ATOMIC_RELAXED);
  }

  const Word word_;  // keeps the mapping
  std::int64_t* const word_ns_;
  std::atomic<std::int64_t> watched_ns_{kWatchedUnprivilegedNs};
  std::mutex mutex_;
  std::int64_t until_ns_ = 1;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace

NB_MODULE(_heartbeat, m) {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      errno = error.code().value();
      PyErr_SetFromErrno(PyExc_OSError);
    }
  });
  nb::class_<Heartbeat>(
      m, "Heartbeat",
      "Keeps `word` of a clock page (ClockPageWriter.watched_until_ns) ahead of CLOCK_MONOTONIC_RAW, "
      "from a thread: by 40 ms at most, by 100 ms where no real-time priority is permitted.")
      .def(nb::init<Heartbeat::Word>(), nb::arg("word"))
      .def("go_on_until", &Heartbeat::go_on_until, nb::arg("raw_ns"),
           "And no further than this; nowhere at first.")
      .def("stop", &Heartbeat::stop, "Leaves the word as it is.");
}
