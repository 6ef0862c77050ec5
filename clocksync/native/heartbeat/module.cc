// The heartbeat of the clock page: while it goes on, readers know that somebody would notice what contradicts fleet time.
//
// A thread of its own, which never waits for the interpreter: it has to come in time, 33 times a second, and its wake-ups
// are to cost next to nothing. It lives with the process, and goes on only for as long as the event loop says, so that
// neither a sidecar that is stopped or dead nor one that hangs keeps a page synchronized; and only while the probe engine
// measures, without which nothing shows a pause of the machine, and until it says that delays contradict the page; for a
// while not where it doubts that.
#include <linux/futex.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "fabricpulse/clock_page.h"

namespace nb = nanobind;

namespace {

constexpr std::chrono::milliseconds kEvery{30};
// About as long as it takes until delays show a pause, at the usual rate. A thread that waits for its core
// like others is late on a busy host, which then would read holdover now and then, each time until the next tick. That
// is not woken up for it: an engine that was stopped, too, has yet to see the packets that show what happened.
constexpr std::int64_t kWatchedNs = 40'000'000, kWatchedUnprivilegedNs = 100'000'000;
// Of the trains of one edge so many intervals may pass without one: 0.2 s at the usual rate. An engine without real-time
// priority is late by as much on a busy host, whose page would else be holdover for half a second now and then. At low
// rates no more than a second, after which what the host has kept is to be confirmed, or fewer intervals.
constexpr std::int64_t kIntervals = 10, kFewestIntervals = 3, kMostSilentNs = 1'000'000'000;
// The engine repeats a doubt while there is reason for it (EdgeShift).
constexpr std::int64_t kDoubtedNs = 300'000'000;
// Of what is followed, from `next` of fp_probe_ring_header on.
constexpr int kSamples = 0, kContradictions = 1, kDoubts = 4;

class Heartbeat {
 public:
  using Word = nb::ndarray<std::int64_t, nb::shape<1>, nb::device::cpu>;
  using Counts = nb::ndarray<const std::uint64_t, nb::shape<5>, nb::device::cpu>;

  explicit Heartbeat(Word word) : word_(std::move(word)), word_ns_(word_.data()) {
    start();
    const sched_param lowest{1};
    if (pthread_setschedparam(thread_.native_handle(), SCHED_FIFO, &lowest) == 0) watched_ns_ = kWatchedNs;
  }
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;
  ~Heartbeat() { stop(); }

  void go_on_until(std::int64_t raw_ns, std::uint64_t contradictions) {
    // The thread looks and beats under the lock as well: else what it cuts off might be what has just been granted.
    const std::lock_guard lock(mutex_);
    // A loop that does not know yet of a contradiction would undo what it has done. And what it knows of is over.
    if (counts_) contradicted_ = load(kContradictions);
    until_ns_ = counts_ && contradicted_ != contradictions ? 1 : raw_ns;
    beat();
  }

  void follow(Counts counts, std::int64_t interval_ns) {
    std::optional<Counts> old(std::move(counts));  // its mapping goes once the lock has
    const std::lock_guard lock(mutex_);
    const std::int64_t now_ns = elapsed_ns();
    if (counts_) longest_silence_ns_ = std::max(longest_silence_ns_, now_ns - measured_ns_);
    counts_.swap(old);
    interval_ns_ = interval_ns;
    counted_ = load(kSamples);
    contradicted_ = load(kContradictions);
    doubts_ = load(kDoubts);
    measured_ns_ = since_ns_ = now_ns;
  }

  std::int64_t longest_silence_ns() {
    const std::lock_guard lock(mutex_);
    const std::int64_t silent_ns = counts_ ? elapsed_ns() - measured_ns_ : 0;
    const std::int64_t longest_ns = std::max(std::exchange(longest_silence_ns_, 0), silent_ns);
    return longest_ns > silence_ns() ? longest_ns : 0;
  }

  // How long the samples that are followed may stand still.
  std::int64_t silence_ns() const {
    const std::int64_t every_ns = std::chrono::nanoseconds(kEvery).count();
    const std::int64_t most_ns = std::max(kFewestIntervals * interval_ns_, kMostSilentNs);
    return std::clamp(kIntervals * interval_ns_, 2 * every_ns, most_ns);
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
      count();
      beat();
    } while (!wait(lock));
  }

  // Until the next beat, or the engine has something to say; true when all ends.
  bool wait(std::unique_lock<std::mutex>& lock) {
    if (!counts_) return wake_.wait_for(lock, kEvery, [this] { return stopped_; });
    const auto* word = reinterpret_cast<const std::uint32_t*>(counts_->data() + kContradictions);
    const auto seen = static_cast<std::uint32_t>(contradicted_);
    lock.unlock();
    const timespec every{0, std::chrono::nanoseconds(kEvery).count()};
    // The ring may have been unmapped by now: then it fails at once.
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &every, nullptr, 0);
    lock.lock();
    return stopped_;
  }

  std::uint64_t load(int word) const { return __atomic_load_n(counts_->data() + word, __ATOMIC_RELAXED); }

  // Under the lock, as all that follows. Notices that the engine has measured something, and what it says of that.
  void count() {
    if (!counts_) return;
    // The loop may be late to learn it.
    const std::uint64_t contradicted = load(kContradictions), doubts = load(kDoubts);
    if (contradicted != std::exchange(contradicted_, contradicted)) until_ns_ = 1;
    if (doubts != std::exchange(doubts_, doubts)) doubted_until_ns_ = elapsed_ns() + kDoubtedNs;
    const std::uint64_t counted = load(kSamples);
    if (counted == std::exchange(counted_, counted)) return;
    const std::int64_t now_ns = elapsed_ns(), silent_ns = now_ns - std::exchange(measured_ns_, now_ns);
    longest_silence_ns_ = std::max(longest_silence_ns_, silent_ns);
    if (silent_ns > silence_ns()) since_ns_ = now_ns;
  }

  void beat() {
    std::int64_t ahead_ns = watched_ns_;
    if (counts_) {
      // After a silence the engine needs trains of both directions to see what happened meanwhile.
      const bool anew = measured_ns_ - since_ns_ < silence_ns();
      ahead_ns = anew || elapsed_ns() < doubted_until_ns_
                     ? -1
                     : std::min(ahead_ns, measured_ns_ + silence_ns() - elapsed_ns());
    }
    __atomic_store_n(word_ns_, std::min(fp_raw_clock_now() + ahead_ns, until_ns_), __ATOMIC_RELAXED);
  }

  // Not by the raw clock, of which a pause is to be noticed.
  static std::int64_t elapsed_ns() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  const Word word_;  // keeps the mapping
  std::int64_t* const word_ns_;
  std::atomic<std::int64_t> watched_ns_{kWatchedUnprivilegedNs};
  std::mutex mutex_;
  std::int64_t until_ns_ = 1;
  std::optional<Counts> counts_;
  std::uint64_t counted_ = 0, contradicted_ = 0,
                doubts_ = 0;  // what counts_ were, the first when measured_ns_ was
  std::int64_t doubted_until_ns_ = 0;
  std::int64_t interval_ns_ = 0, measured_ns_ = 0, longest_silence_ns_ = 0;
  std::int64_t since_ns_ = 0;  // the engine has measured without a silence
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
      .def("go_on_until", &Heartbeat::go_on_until, nb::arg("raw_ns"), nb::arg("contradictions") = 0,
           "And no further than this; nowhere at first, and nowhere if the contradictions of what is "
           "followed are not "
           "as many as the caller has handled.")
      .def("follow", &Heartbeat::follow, nb::arg("counts"), nb::arg("interval_ns"),
           "And only while the first of `counts`, samples of an engine whose trains on one edge are "
           "`interval_ns` apart, counts up: it may stand still for `silence_ns`. No further once the second, "
           "its contradictions, is another, until `go_on_until`; nor for 0.3 s after the fifth, its doubts.")
      .def("silence_ns", &Heartbeat::silence_ns,
           "Ten intervals between trains of what is followed; no more than a second, or three intervals.")
      .def("longest_silence_ns", &Heartbeat::longest_silence_ns,
           "For how long samples stood still, at most, since the last call; 0: no longer than it may.")
      .def("stop", &Heartbeat::stop, "Leaves the word as it is.");
}
