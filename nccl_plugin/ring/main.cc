// fabricpulse-ring: a workload and conformance host for NCCL net plugins.
#include <signal.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "all_to_all.h"
#include "net_driver.h"
#include "options.h"
#include "rendezvous.h"
#include "ring.h"
#include "stream.h"

namespace {

using namespace fabricpulse::ring;

std::atomic<bool> stop{false}, fork_wanted{false}, straggle_wanted{false}, skew_wanted{false};
constexpr unsigned kChildSeconds = 3;

uint64_t clock_ns(clockid_t clock) {
  timespec ts;
  clock_gettime(clock, &ts);
  return static_cast<uint64_t>(ts.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(ts.tv_nsec);
}

std::string json_text(const std::string& text) {
  std::string out = "\"";
  for (char raw : text) {
    unsigned char c = static_cast<unsigned char>(raw);
    if (c == '"' || c == '\\') out += '\\';
    if (c >= 0x20) out += raw;
  }
  return out + "\"";
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string message;
  int status = 0;
  if (!parse_options(argc, argv, &options, &message, &status)) {
    fputs(message.c_str(), status == 0 ? stdout : stderr);
    return status;
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  struct sigaction action {};
  action.sa_handler = [](int) { stop = true; };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
  action.sa_handler = [](int) { straggle_wanted = !straggle_wanted; };
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_handler = [](int) { skew_wanted = !skew_wanted; };
  sigaction(SIGRTMIN, &action, nullptr);
  action.sa_handler = [](int) { fork_wanted = true; };
  sigaction(SIGUSR2, &action, nullptr);
  signal(SIGCHLD, SIG_IGN);  // the kernel buries them

  Counters counters;
  std::mutex lock;
  std::condition_variable ended_signal;
  bool connected = false, ended = false;
  std::string failure;
  uint64_t started = 0;

  // The service thread owns the life of the connections and, in between, hands over to the progress thread.
  std::thread service([&] {
    try {
      Rendezvous rendezvous(options.rank, options.size, options.rendezvous, options.connect_seconds);
      auto net = load_net(options.plugin, options.abi, options.seed);
      std::unique_ptr<Workload> workload;
      if (options.stream) {
        workload = std::make_unique<Stream>(options, net.get(), &rendezvous, &counters);
      } else if (options.pattern == Pattern::kAllToAll) {
        workload = std::make_unique<AllToAll>(options, net.get(), &rendezvous, &counters);
      } else {
        workload = std::make_unique<Ring>(options, net.get(), &rendezvous, &counters);
      }
      workload->connect(&stop);
      rendezvous.barrier(options.connect_seconds);
      {
        std::lock_guard<std::mutex> guard(lock);
        connected = true;
        started = clock_ns(CLOCK_MONOTONIC);
      }
      std::string error;
      std::thread progress([&] {
        try {
          workload->run(&stop);
        } catch (const std::exception& caught) {
          error = caught.what();
        }
      });
      progress.join();
      if (!error.empty()) {
        ++counters.errors;
        std::lock_guard<std::mutex> guard(lock);
        failure = error;
      } else if (options.abort_ms == 0) {
        rendezvous.barrier(10);
      }
      workload->close();
      net->finalize();
    } catch (const std::exception& caught) {
      ++counters.errors;
      std::lock_guard<std::mutex> guard(lock);
      failure = caught.what();
    }
    std::lock_guard<std::mutex> guard(lock);
    ended = true;
    ended_signal.notify_all();
  });

  uint64_t last = 0, last_bytes = 0;
  std::unique_lock<std::mutex> guard(lock);
  while (!ended) {
    ended_signal.wait_for(guard, std::chrono::milliseconds(options.interval_ms));
    counters.straggles = straggle_wanted.load();
    counters.skewed = skew_wanted.load();
    if (fork_wanted.exchange(false) && fork() == 0) {  // without exec, as a data loader
      sleep(kChildSeconds);
      _exit(0);
    }
    if (!connected) continue;
    if (last == 0) last = started;
    uint64_t now = clock_ns(CLOCK_MONOTONIC), bytes = counters.bytes;
    if (now - last < uint64_t{options.interval_ms} * 500'000) continue;
    double rate = static_cast<double>(bytes - last_bytes) * 1e9 / static_cast<double>(now - last);
    uint64_t stall = counters.stall_ns_interval.exchange(0), progress = counters.last_progress_ns;
    if (progress != 0 && now > progress) stall = std::max(stall, now - progress);
    if (options.json) {
      printf(
          "{\"type\":\"interval\",\"rank\":%u,\"mono_ns\":%llu,\"real_ns\":%llu,\"bytes\":%llu,\"rounds\":%"
          "llu,"
          "\"bus_bytes_per_second\":%.0f,\"stall_ms\":%.3f,\"corrupt_bytes\":%llu,\"errors\":%llu}\n",
          options.rank, static_cast<unsigned long long>(now),
          static_cast<unsigned long long>(clock_ns(CLOCK_REALTIME)),
          static_cast<unsigned long long>(bytes - last_bytes),
          static_cast<unsigned long long>(counters.rounds.load()), rate, static_cast<double>(stall) * 1e-6,
          static_cast<unsigned long long>(counters.corrupt_bytes.load()),
          static_cast<unsigned long long>(counters.errors.load()));
    } else {
      printf("rank %u: round %llu, %.1f MB/s bus bandwidth, longest gap %.1f ms, %llu corrupt bytes\n",
             options.rank, static_cast<unsigned long long>(counters.rounds.load()), rate * 1e-6,
             static_cast<double>(stall) * 1e-6,
             static_cast<unsigned long long>(counters.corrupt_bytes.load()));
    }
    last = now;
    last_bytes = bytes;
  }
  guard.unlock();
  service.join();
  double seconds = started == 0 ? 0 : static_cast<double>(clock_ns(CLOCK_MONOTONIC) - started) * 1e-9;
  double rate = seconds > 0 ? static_cast<double>(counters.bytes.load()) / seconds : 0;
  if (options.json) {
    printf(
        "{\"type\":\"summary\",\"rank\":%u,\"size\":%u,\"rounds\":%llu,\"bytes\":%llu,\"seconds\":%.3f,"
        "\"bus_bytes_per_second\":%.0f,\"stall_ms_max\":%.3f,\"corrupt_bytes\":%llu,\"errors\":%llu,"
        "\"error\":%s,\"double_or_lost\":%s,\"late_writes\":%s,"
        "\"cpu_seconds\":%.3f,\"abi\":%s}\n",
        options.rank, options.size, static_cast<unsigned long long>(counters.rounds.load()),
        static_cast<unsigned long long>(counters.bytes.load()), seconds, rate,
        static_cast<double>(counters.stall_ns_max.load()) * 1e-6,
        static_cast<unsigned long long>(counters.corrupt_bytes.load()),
        static_cast<unsigned long long>(counters.errors.load()),
        failure.empty() ? "null" : json_text(failure).c_str(),
        options.stream ? std::to_string(counters.double_or_lost.load()).c_str() : "null",
        options.stream ? std::to_string(counters.late_writes.load()).c_str() : "null", cpu_seconds(),
        json_text(options.abi).c_str());
  } else {
    printf(
        "rank %u: %llu rounds, %.1f MB/s bus bandwidth, longest gap %.1f ms, %llu corrupt bytes, %llu "
        "errors\n",
        options.rank, static_cast<unsigned long long>(counters.rounds.load()), rate * 1e-6,
        static_cast<double>(counters.stall_ns_max.load()) * 1e-6,
        static_cast<unsigned long long>(counters.corrupt_bytes.load()),
        static_cast<unsigned long long>(counters.errors.load()));
  }
  if (!failure.empty()) fprintf(stderr, "fabricpulse-ring: rank %u: %s\n", options.rank, failure.c_str());
  return counters.errors == 0 && counters.corrupt_bytes == 0 && counters.double_or_lost == 0 &&
                 counters.late_writes == 0
             ? 0
             : 1;
}
