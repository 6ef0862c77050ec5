// All-to-all or tree over a NCCL net plugin, for the live runs of `make bench NAME=why`: what fabricpulse-ring does not run.
//
// Options are those of fabricpulse-ring; EXCHANGE_PATTERN is all-to-all or tree, EXCHANGE_HOT a rank. In an all-to-all
// each rank sends to each other a block of --bytes by the number of the others; in a tree (a heap by rank) a block of
// --bytes goes up to rank 0, which waits for all, and comes down again. SIGUSR1: this rank enters each round late, or no
// longer. SIGUSR2: what this rank sends to the hot one is kSkew times as much, or no longer, as the tokens of an
// expert that many choose. Every byte is compared.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "net_driver.h"
#include "options.h"
#include "profile.h"
#include "rendezvous.h"
#include "waiting.h"
#include "workload.h"

namespace {

using namespace fabricpulse::ring;

std::atomic<bool> stop{false}, late{false}, skewed{false};
constexpr size_t kSkew = 5;

struct Connection {
  uint32_t peer = 0, channel = 0;
  void *send = nullptr, *recv = nullptr, *send_memory = nullptr, *recv_memory = nullptr;
  std::vector<uint8_t> out, in;
  void *sending = nullptr, *receiving = nullptr;
  bool sent = false, received = false;
};

class Exchange {
 public:
  Exchange(const Options& options, bool tree, uint32_t hot, Net* net, Rendezvous* rendezvous,
           Counters* counters)
      : options_(options), tree_(tree), hot_(hot), net_(net), rendezvous_(rendezvous), counters_(counters) {}

  void connect() {
    uint32_t n = options_.size, channels = options_.channels;
    auto devices = static_cast<uint32_t>(net_->devices());
    // A handle for each rank and channel; who needs none ignores it.
    std::vector<uint8_t> handles(kHandle * n * channels);
    std::vector<void*> listeners(size_t{n} * channels, nullptr);
    for (uint32_t peer = 0; peer < n; ++peer)
      for (uint32_t c = 0; c < channels && near(peer); ++c)
        listeners[peer * channels + c] =
            net_->listen(static_cast<int>(c % devices), handles.data() + kHandle * (peer * channels + c));
    auto all = rendezvous_->all_gather(handles);
    size_t shares = std::max<size_t>(size_t{channels} * (tree_ ? 1 : n - 1), 1);
    size_t block = std::max<size_t>(options_.bytes / shares, 16);
    for (uint32_t peer = 0; peer < n; ++peer)
      for (uint32_t c = 0; c < channels && near(peer); ++c) {
        Connection made;
        made.peer = peer;
        made.channel = c;
        made.out.resize(block * kSkew);
        made.in.resize(block * kSkew);
        connections_.push_back(std::move(made));
      }
    block_ = block;
    double deadline = now_s() + options_.connect_seconds;
    for (bool done = false; !done;) {
      done = true;
      for (Connection& one : connections_) {
        uint8_t* handle = all[one.peer].data() + kHandle * (options_.rank * channels + one.channel);
        if (one.send == nullptr) one.send = net_->connect(static_cast<int>(one.channel % devices), handle);
        if (one.recv == nullptr) one.recv = net_->accept(listeners[one.peer * channels + one.channel]);
        done &= one.send != nullptr && one.recv != nullptr;
      }
      if (!done && (stop || now_s() > deadline)) throw std::runtime_error("not all connections were made");
      if (!done) usleep(1000);
    }
    for (void* listener : listeners)
      if (listener != nullptr) net_->close_listen(listener);
    for (Connection& one : connections_) {
      one.send_memory = net_->reg(one.send, one.out.data(), one.out.size());
      one.recv_memory = net_->reg(one.recv, one.in.data(), one.in.size());
    }
    profile_ =
        std::make_unique<Profile>(options_.plugin, options_.seed, n, options_.rank, Profile::kAllReduce);
  }

  void run() {
    for (uint64_t number = 0;; ++number) {
      counters_->last_progress_ns = now_ns();
      profile_->begin(number, block_ * options_.channels * (tree_ ? 1 : options_.size - 1));
      bool ends = tree_ ? up_and_down(number) : all_to_all(number);
      profile_->end();
      counters_->last_progress_ns = 0;
      ++counters_->rounds;
      if (ends) return;
      if (options_.compute_ms > 0) usleep(options_.compute_ms * 1000);
      if (late) usleep(options_.late_ms * 1000);
    }
  }

  void close() {
    profile_.reset();
    for (Connection& one : connections_) {
      net_->dereg(one.send, one.send_memory);
      net_->dereg(one.recv, one.recv_memory);
      net_->close_send(one.send);
      net_->close_recv(one.recv);
    }
  }

 private:
  bool near(uint32_t peer) const {
    if (peer == options_.rank) return false;
    return !tree_ || above(options_.rank) == peer || above(peer) == options_.rank;
  }
  // Rank 0 is above itself.
  static uint32_t above(uint32_t rank) { return rank == 0 ? 0 : (rank - 1) / 2; }
  bool is_above(const Connection& one) const {
    return options_.rank != 0 && one.peer == above(options_.rank);
  }

  bool all_to_all(uint64_t number) {
    bool mine = stop;
    auto everyone = [](const Connection&) { return true; };
    return move(number, mine, everyone, everyone) || mine;
  }

  bool up_and_down(uint64_t number) {
    auto up = [&](const Connection& one) { return is_above(one); };
    auto below = [&](const Connection& one) { return !is_above(one); };
    auto nobody = [](const Connection&) { return false; };
    bool ends = stop;
    ends |= move(number, false, nobody, below);
    ends |= move(number, ends, up, nobody);
    if (options_.rank != 0) ends = move(number, false, nobody, up);  // rank 0 has received from all
    move(number, ends, below, nobody);
    return ends;
  }

  // Sends a block to those, receives one from these; whether one of them says that this round is the last.
  template <typename To, typename From>
  bool move(uint64_t number, bool last, To to, From from) {
    for (Connection& one : connections_) {
      one.sent = !to(one);
      one.received = !from(one);
      one.sending = one.receiving = nullptr;
      if (one.sent) continue;
      memset(one.out.data(), byte_of(options_.rank, one.peer, number), one.out.size());
      one.out[0] = last ? 1 : 0;
    }
    bool ends = false;
    Pause pause(options_.busy, options_.poll_us);
    for (bool done = false; !done;) {
      bool moved = false;
      done = true;
      for (Connection& one : connections_) {
        size_t size = one.peer == hot_ && skewed && !tree_ ? block_ * kSkew : block_, got = 0;
        auto tag = static_cast<int>(one.channel);
        if (!one.received && one.receiving == nullptr) {
          one.receiving = net_->irecv(one.recv, one.in.data(), one.in.size(), tag, one.recv_memory);
        }
        if (!one.sent && one.sending == nullptr) {
          one.sending = net_->isend(one.send, one.out.data(), size, tag, one.send_memory);
        }
        if (one.receiving != nullptr && !one.received && net_->test(one.receiving, &got)) {
          one.received = moved = true;
          counters_->arrived(got);
          ends |= one.in[0] != 0;
          uint8_t expected = byte_of(one.peer, options_.rank, number);
          for (size_t i = 1; i < got; ++i) counters_->corrupt_bytes += one.in[i] != expected;
        }
        if (one.sending != nullptr && !one.sent && net_->test(one.sending, &got)) one.sent = moved = true;
        done &= one.sent && one.received;
      }
      pause.after(moved);
    }
    return ends;
  }

  static uint8_t byte_of(uint32_t source, uint32_t target, uint64_t number) {
    return static_cast<uint8_t>(mix(number * 4096 + source * 64 + target));
  }

  const Options options_;
  const bool tree_;
  const uint32_t hot_;
  Net* net_;
  Rendezvous* rendezvous_;
  Counters* counters_;
  size_t block_ = 0;
  std::vector<Connection> connections_;
  std::unique_ptr<Profile> profile_;
};

void print(const char* kind, const Options& options, const Counters& counters, uint64_t bytes) {
  timespec real;
  clock_gettime(CLOCK_REALTIME, &real);
  printf(
      "{\"type\":\"%s\",\"rank\":%u,\"real_ns\":%lld,\"bytes\":%llu,\"rounds\":%llu,\"corrupt_bytes\":%llu,"
      "\"errors\":%llu}\n",
      kind, options.rank, static_cast<long long>(real.tv_sec) * 1'000'000'000 + real.tv_nsec,
      static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(counters.rounds.load()),
      static_cast<unsigned long long>(counters.corrupt_bytes.load()),
      static_cast<unsigned long long>(counters.errors.load()));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string message;
  int status = 0;
  if (!parse_options(argc, argv, &options, &message, &status)) {
    fputs(message.c_str(), stderr);
    return status;
  }
  const char *pattern = getenv("EXCHANGE_PATTERN"), *hot = getenv("EXCHANGE_HOT");
  setvbuf(stdout, nullptr, _IOLBF, 0);
  struct sigaction action {};
  action.sa_handler = [](int) { stop = true; };
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = [](int) { late = !late; };
  sigaction(SIGUSR1, &action, nullptr);
  action.sa_handler = [](int) { skewed = !skewed; };
  sigaction(SIGUSR2, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
  Counters counters;
  std::atomic<bool> ended{false};
  std::thread work([&] {
    try {
      Rendezvous rendezvous(options.rank, options.size, options.rendezvous, options.connect_seconds);
      auto net = load_net(options.plugin, options.abi, options.seed);
      Exchange exchange(options, pattern != nullptr && strcmp(pattern, "tree") == 0,
                        hot == nullptr ? 0 : static_cast<uint32_t>(strtoul(hot, nullptr, 10)), net.get(),
                        &rendezvous, &counters);
      exchange.connect();
      rendezvous.barrier(options.connect_seconds);
      exchange.run();
      rendezvous.barrier(10);
      exchange.close();
      net->finalize();
    } catch (const std::exception& error) {
      ++counters.errors;
      fprintf(stderr, "why_exchange: rank %u: %s\n", options.rank, error.what());
    }
    ended = true;
  });
  uint64_t last = 0;
  while (!ended) {
    usleep(options.interval_ms * 1000);
    uint64_t bytes = counters.bytes;
    print("interval", options, counters, bytes - last);
    last = bytes;
  }
  work.join();
  print("summary", options, counters, counters.bytes);
  return counters.errors == 0 && counters.corrupt_bytes == 0 ? 0 : 1;
}
