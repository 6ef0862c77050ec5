// Plays rtnetlink messages to what watches the plugin's NICs (nccl_plugin/src/process/link_monitor.h), which are rail0
// (index 2) and rail1 (index 3); FABRICPULSE_NICS would be rail*. tests/unit/plugin/test_link_events.py writes them.
//
// Standard input: of each datagram the length as four bytes, and its bytes; the clock moves by 1 ms after each, with a
// tick. Prints how often each NIC was looked at and how often all interfaces were: `RAIL0 RAIL1 ALL`.
// `unasked MS`: the link of rail0 is lost and comes back, which the kernel does not tell for MS milliseconds. Prints how many
// milliseconds after it did so the link was taken for up.
// `held`: the kernel does not answer about addresses while rail0 loses its link and rail1 its address. Prints what is known
// of link 0 and address 1 meanwhile, and after the answer.
// `threadless`: no thread can be made, and rail1 loses its address. Prints what is known of address 1, and whether the
// caller still gets signals.
// `came`: the poll finds a NIC that has come. Prints how many milliseconds later it listens.
// `replaced`: the RDMA device of rail0 is gone; after two polls another one is there, which the transport finds when it
// listens anew. Prints whether the link was down meanwhile, and after how many milliseconds it is up.
// `memory`: the thread that asks the kernel has no memory left, while rail1 loses its address. Prints what is known of
// address 1 then, and after the next poll.
#include "process/link_monitor.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "idle_transport.h"
#include "test_runtime.h"

using namespace fabricpulse;

namespace {

thread_local bool out_of_memory = false;

}  // namespace

void* operator new(size_t size) {
  void* made = out_of_memory ? nullptr : malloc(size);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }

namespace {

struct Counts final : IdleTransport {
  std::vector<NicInfo> discover(const std::vector<std::string>&) const override {
    ++scans;
    return {};
  }
  bool wants(const std::string& name) const override { return name.compare(0, 4, "rail") == 0; }
  std::optional<bool> look_up(NicInfo* nic) const override {
    ++looks[nic->ifindex & 1];
    return true;
  }
  mutable int looks[2] = {}, scans = 0;
};

// Two NICs, and messages of rtnetlink to what watches them.
struct Watched {
  explicit Watched(Runtime* runtime, Transport* transport)
      : monitor(runtime, transport, &nics, &connections, &nics_lock, &port) {
    for (unsigned index : {2, 3}) {
      NicInfo nic;
      nic.name = "rail" + std::to_string(index - 2);
      nic.ifindex = index;
      monitor.add_nic(nic);
    }
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) != 0) abort();
    monitor.watch(pair[0]);
  }
  ~Watched() { close(pair[1]); }
  void play(const void* datagram, size_t size, uint64_t now) {
    if (send(pair[1], datagram, size, 0) != static_cast<ssize_t>(size)) abort();
    monitor.events(now);
  }
  void link_event(unsigned index, uint64_t now) {
    struct {
      nlmsghdr head{};
      ifinfomsg info{};
    } message;
    message.head.nlmsg_len = sizeof(message);
    message.head.nlmsg_type = RTM_NEWLINK;
    message.info.ifi_index = static_cast<int>(index);
    play(&message, sizeof(message), now);
  }

  NicTable nics;
  ConnectionTable connections;
  std::mutex nics_lock;
  std::atomic<uint16_t> port{1};
  LinkMonitor monitor;
  int pair[2];
};

// The service thread is woken when there are answers.
struct WokenRuntime : SteppedRuntime {
  void wake() override {
    out_of_memory = false;
    std::lock_guard<std::mutex> held(mutex);
    woken = true;
    changed.notify_one();
  }
  bool wait() {
    std::unique_lock<std::mutex> held(mutex);
    const bool came = changed.wait_for(held, std::chrono::seconds(20), [&] { return woken; });
    woken = false;
    return came;
  }
  std::mutex mutex;
  std::condition_variable changed;
  bool woken = false;
};

int unasked(uint64_t for_ms) {
  struct Kernel final : IdleTransport {
    std::optional<bool> link_up(const std::string& name) const override {
      return name == "rail0" ? link : std::optional<bool>(true);
    }
    std::optional<bool> link = true;
  } kernel;
  SteppedRuntime runtime;
  Watched watched(&runtime, &kernel);
  watched.monitor.tick(runtime.now_ns);
  kernel.link = false;
  watched.link_event(2, runtime.now_ns);
  kernel.link = std::nullopt;
  watched.link_event(2, runtime.now_ns);
  uint64_t answers_ms = 0, up_ms = 0;
  for (; !watched.nics.at(0).link_up && up_ms < 60'000; ++up_ms) {
    if (up_ms == for_ms) kernel.link = true, answers_ms = up_ms;
    runtime.now_ns += 1'000'000;
    watched.monitor.tick(runtime.now_ns);
  }
  printf("%llu\n", static_cast<unsigned long long>(up_ms - answers_ms));
  return 0;
}

int held() {
  struct Kernel final : IdleTransport {
    std::optional<bool> link_up(const std::string& name) const override { return name != "rail0" || link; }
    std::optional<bool> look_up(NicInfo* nic) const override {
      if (std::this_thread::get_id() == service) return std::nullopt;  // it would wait here
      std::unique_lock<std::mutex> lock(mutex);
      changed.wait(lock, [this] { return !busy; });
      return nic->name != "rail1";
    }
    bool link = true;
    std::thread::id service = std::this_thread::get_id();
    bool busy = true;
    mutable std::mutex mutex;
    mutable std::condition_variable changed;
  } kernel;
  WokenRuntime runtime;
  Watched watched(&runtime, &kernel);
  auto print = [&] {
    printf("%d %d\n", watched.nics.at(0).link_up.load(), watched.nics.at(1).addressed.load());
  };
  watched.monitor.start();
  kernel.link = false;
  watched.link_event(2, runtime.now_ns);
  watched.link_event(3, runtime.now_ns);
  watched.monitor.tick(runtime.now_ns);
  print();
  {
    std::lock_guard<std::mutex> lock(kernel.mutex);
    kernel.busy = false;
  }
  kernel.changed.notify_one();
  while (watched.nics.at(1).addressed && runtime.wait()) watched.monitor.tick(runtime.now_ns);
  print();
  watched.monitor.stop();
  return 0;
}

int threadless() {
  struct Kernel final : IdleTransport {
    std::optional<bool> look_up(NicInfo* nic) const override { return nic->name != "rail1"; }
  } kernel;
  SteppedRuntime runtime;
  Watched watched(&runtime, &kernel);
  const rlimit no_room{1 << 20, 1 << 20};  // of the address space: none for a stack
  if (setrlimit(RLIMIT_AS, &no_room) != 0) return 1;
  watched.monitor.start();
  watched.link_event(3, runtime.now_ns);
  sigset_t blocked;
  pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
  printf("%d %d\n", watched.nics.at(1).addressed.load(), sigismember(&blocked, SIGTERM));
  return 0;
}

int came() {
  struct Kernel final : IdleTransport {
    std::vector<NicInfo> discover(const std::vector<std::string>& known) const override {
      NicInfo other;
      other.name = "rail2";
      other.ifindex = 4;
      return known.size() == 2 ? std::vector<NicInfo>{other} : std::vector<NicInfo>{};
    }
    bool listens(uint32_t nic) const override { return nic != 2 || listened; }
    uint16_t listen(uint32_t nic, const NicInfo&, uint16_t port) override {
      listened |= nic == 2;
      return port;
    }
    bool listened = false;
  } kernel;
  SteppedRuntime runtime;
  Watched watched(&runtime, &kernel);
  while (watched.nics.count() == 2) {
    runtime.now_ns += 1'000'000;
    watched.monitor.tick(runtime.now_ns);
  }
  int listens_ms = 0;
  for (; !kernel.listened && listens_ms < 60'000; ++listens_ms) {
    runtime.now_ns += 1'000'000;
    watched.monitor.tick(runtime.now_ns);
  }
  printf("%d\n", listens_ms);
  return 0;
}

int replaced() {
  struct Kernel final : IdleTransport {
    std::optional<bool> link_up(const std::string& name) const override { return name != "rail0" || has; }
    bool listens(uint32_t nic) const override { return nic != 0 || has; }
    uint16_t listen(uint32_t nic, const NicInfo&, uint16_t port) override {
      has |= nic == 0 && there;
      return nic != 0 || has ? port : 0;
    }
    bool has = true, there = true;
  } kernel;
  SteppedRuntime runtime;
  Watched watched(&runtime, &kernel);
  watched.monitor.tick(runtime.now_ns);
  kernel.has = kernel.there = false;
  watched.monitor.transport_changed(runtime.now_ns);
  int down_ms = 0;
  for (; !watched.nics.at(0).link_up && down_ms < 60'000; ++down_ms) {
    kernel.there = down_ms >= 11'000;
    runtime.now_ns += 1'000'000;
    watched.monitor.tick(runtime.now_ns);
  }
  printf("%d %d\n", down_ms > 11'000, down_ms - 11'000);
  return 0;
}

int memory() {
  struct Kernel final : IdleTransport {
    std::vector<NicInfo> discover(const std::vector<std::string>&) const override {
      out_of_memory = scans++ == 0;
      return {};
    }
    std::optional<bool> look_up(NicInfo* nic) const override { return nic->name != "rail1"; }
    mutable int scans = 0;
  } kernel;
  WokenRuntime runtime;
  Watched watched(&runtime, &kernel);
  watched.monitor.start();
  for (int poll = 0; poll < 2; ++poll) {
    runtime.now_ns += 6'000'000'000;
    watched.monitor.tick(runtime.now_ns);
    if (!runtime.wait()) return 1;
    watched.monitor.tick(runtime.now_ns);
    printf("%d\n", watched.nics.at(1).addressed.load());
  }
  watched.monitor.stop();
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  if (what == "unasked") return unasked(strtoull(arguments[2], nullptr, 10));
  if (what == "held") return held();
  if (what == "threadless") return threadless();
  if (what == "came") return came();
  if (what == "replaced") return replaced();
  if (what == "memory") return memory();
  SteppedRuntime runtime;
  Counts transport;
  Watched watched(&runtime, &transport);
  uint32_t size = 0;
  std::vector<char> datagram;
  while (fread(&size, sizeof(size), 1, stdin) == 1) {
    datagram.resize(size);
    if (fread(datagram.data(), 1, size, stdin) != size) return 2;
    watched.play(datagram.data(), size, runtime.now_ns);
    watched.monitor.tick(runtime.now_ns);
    runtime.now_ns += 1'000'000;
  }
  printf("%d %d %d\n", transport.looks[0], transport.looks[1], transport.scans);
  return 0;
}
