// Wall and processor time of the net benchmark: of the process, of a thread, of the library's own threads.
#pragma once
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

namespace net_bench {

inline double now_s() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) * 1e-9;
}

// Of this thread. What it does with a message is taken off the processor time: on a busy machine the clock on the wall
// would take off more than that.
inline double thread_s() {
  timespec ts;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) * 1e-9;
}

inline double cpu_s() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

// What two readings of thread_s() with nothing between them differ by.
inline double reading_s() {
  double least = 1;
  for (int i = 0; i < 1000; ++i) {
    double start = thread_s();
    least = std::min(least, thread_s() - start);
  }
  return least;
}

// Processor seconds of the threads that are there, by name, but for the first one and those of `without`: a thread that
// was waited for may be there for a moment more.
inline std::map<std::string, double> threads_s(const std::set<pid_t>& without = {}) {
  std::map<std::string, double> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const auto id = static_cast<pid_t>(std::stol(task.path().filename()));
    if (id == getpid() || without.count(id) > 0) continue;
    std::string name;
    double nanoseconds = 0;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (std::ifstream(task.path() / "schedstat") >> nanoseconds) found[name] += nanoseconds * 1e-9;
  }
  return found;
}

}  // namespace net_bench
