// How the ranks of an all-to-all (nccl_plugin/ring/all_to_all.h) end: threads of one process, over a network that refuses
// sends now and then, as a plugin does whose lock another thread holds.
//
// Usage: ring_all_to_all RANKS SEED GAMES
// In each game one rank or two, drawn by chance, are asked to stop at some time. Prints a line for each game: how many
// rounds each rank has done. A game that does not end within 60 s ends the program by SIGALRM.
#include "all_to_all.h"

#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace fabricpulse::ring;

namespace {

// Of a rank to another on a channel.
struct Pipe {
  std::mutex lock;
  std::deque<std::vector<uint8_t>> messages;
};

struct Request {
  Pipe* pipe = nullptr;
  void* into = nullptr;  // null: of a send
};

class RefusingNet final : public Net {
 public:
  // Sets `stop` before the send of that number.
  RefusingNet(uint32_t seed, std::atomic<bool>* stop, uint64_t stop_at)
      : random_(seed), stop_(stop), stop_at_(stop_at) {}
  int devices() override { return 1; }
  void* listen(int, void* handle) override {
    void* made = new Pipe;
    memcpy(handle, &made, sizeof(void*));
    return made;
  }
  void* connect(int, void* handle) override {
    void* pipe = nullptr;
    memcpy(&pipe, handle, sizeof(void*));
    return pipe;
  }
  void* accept(void* listener) override { return listener; }
  void* reg(void*, void*, size_t) override { return nullptr; }
  void dereg(void*, void*) override {}
  void* isend(void* comm, void* data, size_t size, int, void*) override {
    if (sends_++ == stop_at_) *stop_ = true;
    if (random_() % 3 == 0) return nullptr;
    auto* pipe = static_cast<Pipe*>(comm);
    const auto* bytes = static_cast<const uint8_t*>(data);
    std::lock_guard<std::mutex> held(pipe->lock);
    pipe->messages.emplace_back(bytes, bytes + size);
    return new Request{pipe, nullptr};
  }
  void* irecv(void* comm, void* data, size_t, int, void*) override {
    return new Request{static_cast<Pipe*>(comm), data};
  }
  bool test(void* request, size_t* size) override {
    auto* asked = static_cast<Request*>(request);
    if (asked->into != nullptr) {  // the oldest of its connection is tested first
      std::lock_guard<std::mutex> held(asked->pipe->lock);
      if (asked->pipe->messages.empty()) return false;
      *size = asked->pipe->messages.front().size();
      memcpy(asked->into, asked->pipe->messages.front().data(), *size);
      asked->pipe->messages.pop_front();
    }
    delete asked;
    return true;
  }
  void close_send(void*) override {}
  void close_recv(void* comm) override { delete static_cast<Pipe*>(comm); }
  void close_listen(void*) override {}
  void finalize() override {}

 private:
  std::mt19937 random_;
  std::atomic<bool>* const stop_;
  const uint64_t stop_at_;
  uint64_t sends_ = 0;
};

// What the ranks give one another in place of a rendezvous over TCP; and that all have ended.
std::mutex gathering;
std::condition_variable gathered;
std::vector<std::vector<uint8_t>> blocks;
uint32_t arrived = 0;

void play(uint32_t ranks, std::mt19937* random) {
  blocks.assign(ranks, {});
  arrived = 0;
  std::vector<std::unique_ptr<std::atomic<bool>>> stops;
  std::vector<Counters> counters(ranks);
  std::vector<std::thread> threads;
  const uint32_t first = (*random)() % ranks, second = (*random)() % ranks;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    stops.push_back(std::make_unique<std::atomic<bool>>(false));
    const uint64_t stop_at = rank == first || rank == second ? (*random)() % 400 : UINT64_MAX;
    threads.emplace_back([&counters, ranks, rank, stop_at, stop = stops.back().get(), seed = (*random)()] {
      Options options;
      options.rank = rank;
      options.size = ranks;
      options.bytes = 4096;
      options.pattern = Pattern::kAllToAll;
      RefusingNet net(static_cast<uint32_t>(seed), stop, stop_at);
      Rendezvous rendezvous(rank, ranks, "", 0);
      AllToAll workload(options, &net, &rendezvous, &counters[rank]);
      workload.connect(stop);
      workload.run(stop);
      if (!rendezvous.barrier(0)) abort();
      workload.close();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Counters& one : counters) {
    if (one.corrupt_bytes != 0) throw std::runtime_error("corrupt bytes");
    printf("%llu ", static_cast<unsigned long long>(one.rounds.load()));
  }
  printf("\n");
}

}  // namespace

namespace fabricpulse::ring {

Rendezvous::Rendezvous(uint32_t rank, uint32_t size, const std::string&, int) : rank_(rank), size_(size) {}
Rendezvous::~Rendezvous() = default;

std::vector<std::vector<uint8_t>> Rendezvous::all_gather(const std::vector<uint8_t>& mine) {
  {
    std::lock_guard<std::mutex> held(gathering);
    blocks[rank_] = mine;
  }
  (void)barrier(0);
  return blocks;
}

bool Rendezvous::barrier(int) {
  std::unique_lock<std::mutex> held(gathering);
  const uint32_t turn = arrived++ / size_;
  gathered.notify_all();
  gathered.wait(held, [&] { return arrived >= (turn + 1) * size_; });
  return true;
}

}  // namespace fabricpulse::ring

int main(int count, char** arguments) try {
  if (count != 4) return 2;
  std::mt19937 random(static_cast<uint32_t>(strtoul(arguments[2], nullptr, 10)));
  for (uint64_t game = 0; game < strtoull(arguments[3], nullptr, 10); ++game) {
    alarm(60);
    play(static_cast<uint32_t>(strtoul(arguments[1], nullptr, 10)), &random);
  }
  return 0;
} catch (const std::exception& error) {
  fprintf(stderr, "%s\n", error.what());
  return 1;
}
