// Two processes and one NCCL net: throughput, processor time and latency through the net v12 interface, for
// this project's plugin and, in the same way, for the transports inside libnccl (which export no symbol:
// their place is given).
//
// Why the comparison is fair. NCCL's progress thread decides when a transport gets to work, and transports
// differ in which call they work in: NCCL's sockets move bytes only when a request is tested, this plugin
// also when one is posted. So the calls are made in the order of NCCL's proxy (sendProxyProgress,
// recvProxyProgress and ncclProxyProgress of 2.29), for both nets by the same code:
//   * one thread a side, sender and receiver in processes of their own; nothing waits for readiness;
//   * a pass over a send posts at most one isend, if fewer than NCCL_STEPS are under way, and is over then;
//     otherwise it tests the oldest request, and only that one;
//   * a pass over a receive posts at most one irecv, if fewer than NCCL_STEPS are under way, and is over
//     then; otherwise it tests the oldest. Receives are posted before the first send starts;
//   * a pass without progress, and every eighth one with, ends with sched_yield.
// As a GPU would, the sender writes every cache line of a message before isend and the receiver reads and
// checks every line after test; no DMA does that here, so the time it takes is taken off the processor time
// (not off the throughput). Testing younger requests too is no choice: NCCL's sockets read the next message's
// head for whichever request is tested.
//
// Usage: plugin_net_bench ROLE HOST:PORT MODE BYTES SECONDS LIBRARY TABLE [STUB]
//   ROLE   receive (listens at HOST:PORT) or send
//   MODE   latency, bandwidth, or bandwidth:N over N communicators at the same time, each with a net context, a
//          connection and a progress thread of its own, as NCCL has them
//   TABLE  name of an exported symbol, or 0xOFFSET of the table in the library
//   STUB   0xOFFSET of cudaGetDevice in the library: replaced by one that answers device 0
// NET_BENCH_PROFILER=LIBRARY in the environment: the events of NCCL's proxy go to that library's profiler
// too. NET_BENCH_FUSED=N: over one virtual device made of the first N. NET_BENCH_NAP_US=N: an idle pass ends with a nap instead, so that processor time is work and not waiting.
// Prints one JSON line. Of the processor time it says apart what the profiler's calls took, each thread that is neither the
// first nor a communicator's (a library's own), and what it waited: passes that found nothing, each counted as the
// cheapest costs. How many those are is the scheduler's choice, not the transport's.
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cpu_time.h"
#include "library.h"
#include "peer.h"
#include "proxy.h"

using namespace fabricpulse::abi;
using namespace net_bench;

int main(int argc, char** argv) {
  if (argc < 8) return 2;
  bool receives = strcmp(argv[1], "receive") == 0, latency = strcmp(argv[3], "latency") == 0;
  const char* many = strchr(argv[3], ':');
  unsigned long communicators = many != nullptr ? strtoul(many + 1, nullptr, 10) : 1;
  if (communicators < 1 || communicators > 256) return 2;
  size_t bytes = strtoull(argv[4], nullptr, 10);
  if (bytes < 8) return 2;
  double seconds = strtod(argv[5], nullptr);
  if (!(seconds > 0)) return 2;
  int peer = meet(receives, argv[2]);
  int on = 1;
  setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const NetV12* net = table_of(argv[6], argv[7], argc > 8 ? argv[8] : nullptr);
  std::vector<std::unique_ptr<Communicator>> all;
  for (unsigned long number = 1; number <= communicators; ++number)
    all.push_back(std::make_unique<Communicator>(net, number, receives, bytes, peer));
  // What a transport does in the background once it is connected (this plugin: its other lanes) is of each connection,
  // and not of each byte. It gives no event, so that this waits.
  usleep(200'000);
  // The receiver has posted before the sender starts.
  if (latency || receives)
    for (auto& each : all) each->post_receives();
  char word = 0;
  swap_bytes(peer, "x", &word, 1);

  const std::map<std::string, double> threads_before = threads_s();
  double start = now_s(), cpu = cpu_s();
  std::vector<double> rounds;
  std::set<pid_t> streams;
  if (latency) {
    rounds = all.front()->bounce(receives, start, seconds);
  } else {
    std::vector<std::thread> threads;
    std::mutex lock;
    for (auto& each : all)
      threads.emplace_back([&, receives, start, seconds] {
        {
          std::lock_guard<std::mutex> held(lock);
          streams.insert(gettid());
        }
        each->stream(receives, start, seconds);
      });
    for (auto& thread : threads) thread.join();
  }
  // Before the files of the threads are read, which takes processor time for each.
  const double took = now_s() - start, cpu_after = cpu_s();
  std::map<std::string, double> threads_after = threads_s(streams);
  double touched = 0, longest_gap = 0, profiler = 0, waited = 0;
  uint64_t count = 0, wrong = 0, idle = 0;
  for (auto& each : all) {
    touched += each->touched_s() + each->waiting().readings_s();
    waited += each->waiting().seconds();
    idle += each->waiting().passes();
    profiler += each->profiler_s();
    count += latency || receives ? each->in().done() : each->out().done();
    wrong += each->in().wrong();
    longest_gap = std::max(longest_gap, each->in().longest_gap_s());
  }
  double used = cpu_after - cpu - touched;
  double gigabytes = static_cast<double>(count) * static_cast<double>(bytes) / 1e9;
  double p50 = 0;
  if (!rounds.empty()) {
    std::nth_element(rounds.begin(), rounds.begin() + static_cast<long>(rounds.size() / 2), rounds.end());
    p50 = rounds[rounds.size() / 2];
  }
  const double per_gb = gigabytes > 0 ? 1 / gigabytes : 0;
  std::string threads_text;
  for (const auto& [name, seconds] : threads_after) {
    auto before = threads_before.find(name);
    double spent = seconds - (before != threads_before.end() ? before->second : 0);
    threads_text += (threads_text.empty() ? "\"" : ", \"") + name + "\": " + std::to_string(spent * per_gb);
  }
  printf(
      "{\"role\": \"%s\", \"messages\": %llu, \"wrong\": %llu, \"seconds\": %.6f, \"gb_per_s\": %.6f, "
      "\"cpu_s_per_gb\": %.6f, \"wait_s_per_gb\": %.6f, \"idle_passes\": %llu, \"touch_s_per_gb\": %.6f, "
      "\"profiler_s_per_gb\": %.6f, "
      "\"threads_s_per_gb\": {%s}, \"half_round_trip_us\": %.3f, \"longest_gap_ms\": %.3f}\n",
      argv[1], static_cast<unsigned long long>(count), static_cast<unsigned long long>(wrong), took,
      gigabytes / took, used * per_gb, waited * per_gb, static_cast<unsigned long long>(idle),
      touched * per_gb, profiler * per_gb, threads_text.c_str(), p50 * 1e6, longest_gap * 1e3);
  fflush(stdout);
  swap_bytes(peer, "y", &word, 1);
  // Receives that were posted ahead are given up with the process.
  _exit(wrong == 0 ? 0 : 1);
}
