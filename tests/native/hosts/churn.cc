// Two processes that make and end connections over and over, in odd ways: each channel is a thread that lives one
// connection after the other, whose direction, messages and end both processes draw from the same seed.
//
// Usage: plugin_churn_host LIBRARY RANK SOCKET SEED CHANNELS LIVES
//   RANK  0 listens at the Unix socket by which the two tell each other handles; 1 connects to it
// How a connection ends, by its `Ending` below. Allowed errors are those that follow from what an end does on purpose,
// and any once the other process has been killed.
// SIGUSR2: it forks a child that lives for half a second and runs no other program.
// Prints one JSON object: connections, messages, and the longest waits, in milliseconds: for connect(), for a message
// that the peer sends without a pause, and, when the other process was killed, until all connections had ended. Exit 1
// with a line of what broke. CHURN_LOG in the environment: the plugin's log and each long wait, on standard error.
#include <dirent.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nccl_host.h"

using namespace fabricpulse::abi;

namespace {

enum Ending : uint32_t {
  kOrderly,         // all messages arrive, then each end closes when it likes
  kSenderAborts,    // it closes with sends under way
  kReceiverAborts,  // it closes with receives under way
  kBothAbort,
  kSenderTakesBack,  // it deregisters memory of sends under way, and closes later
  kDeaf,             // the receiver closes its listener at once and never accepts
  kGivenUp,          // the sender stops to ask for the connection
  kEndings
};

constexpr size_t kMost = 1'500'000;
constexpr double kPatienceS = 40;  // longer than any fault

const NetV12* net = nullptr;
int rank_number = 0, control = -1;
uint64_t seed = 0;
std::atomic<uint64_t> connections{0}, messages{0}, connect_ms{0}, message_ms{0}, gone_ms{0};
std::atomic<double> peer_gone_s{0};  // when the other process was killed

[[noreturn]] void broken(const std::string& what) {
  fprintf(stderr, "rank %d: %s\n", rank_number, what.c_str());
  fflush(stderr);
  _exit(1);
}

double now_s() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<double>(ts.tv_sec) + static_cast<double>(ts.tv_nsec) * 1e-9;
}

void longest(std::atomic<uint64_t>* most, double since_s) {
  const auto ms = static_cast<uint64_t>((now_s() - since_s) * 1e3);
  if (ms > 150 && getenv("CHURN_LOG") != nullptr)
    fprintf(stderr, "%.3f rank %d: %s took %llu ms\n", now_s(), rank_number,
            most == &connect_ms ? "a connection" : "a message", static_cast<unsigned long long>(ms));
  uint64_t known = most->load();
  while (ms > known && !most->compare_exchange_weak(known, ms)) {
  }
}

void log_line(int level, unsigned long, const char*, int, const char* format, ...) {
  if (level > 3 || getenv("CHURN_LOG") == nullptr) return;
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%.3f rank %d: ", now_s(), rank_number);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
}

// Handles that the peer has published, by channel and life.
struct Handle {
  uint64_t channel, life;
  char handle[kHandleBytes];
};
std::mutex handles_lock;
std::map<std::pair<uint64_t, uint64_t>, Handle> handles;

void publish(const Handle& what) {
  static std::mutex lock;
  std::lock_guard<std::mutex> held(lock);
  (void)send(control, &what, sizeof(what), MSG_NOSIGNAL);  // it may have gone
}
bool peer_gone() { return peer_gone_s.load() != 0; }

constexpr uint64_t kNoMore = UINT64_MAX;  // a channel of its own: it has ended all lives
void listen_to_peer() {
  Handle received{};
  while (recv(control, &received, sizeof(received), MSG_WAITALL) == static_cast<ssize_t>(sizeof(received))) {
    std::lock_guard<std::mutex> held(handles_lock);
    handles[{received.channel, received.life}] = received;
  }
  if (received.channel != kNoMore) peer_gone_s = now_s();
}

uint8_t byte_of(uint64_t key, size_t at) { return static_cast<uint8_t>(key * 31 + at * 7 + (at >> 9)); }

struct Plan {
  explicit Plan(uint64_t channel, uint64_t life) : dice(seed * 1'000'003 + channel * 1009 + life) {
    ending = any(3) == 0 ? static_cast<Ending>(any(kEndings)) : kOrderly;
    sends = (any(2) ^ static_cast<uint64_t>(rank_number)) == 0;
    count = any(4) == 0 ? any(3) : 1 + any(40);
    breaks_at = any(count + 1);
    for (uint64_t i = 0; i < count; ++i) {
      static constexpr size_t kSizes[] = {0, 1, 16'383, 16'384, 16'385, 65'536, kMost};
      sizes.push_back(any(3) == 0 ? kSizes[any(7)] : any(any(4) == 0 ? kMost : 40'000));
      rooms.push_back(any(2) == 0 ? sizes.back() : std::min(sizes.back() + any(100'000), kMost));
    }
    key = dice();
    device = any(8);
  }
  uint64_t any(uint64_t limit) { return dice() % limit; }
  std::mt19937_64 dice;
  Ending ending;
  bool sends;
  uint64_t count, breaks_at, key, device;
  std::vector<size_t> sizes, rooms;
};

struct Request {
  void* handle = nullptr;
  uint64_t number = 0;
  std::vector<uint8_t> data;
  void *memory = nullptr, *memory_again = nullptr;
  double posted_s = 0;
};

class Life {
 public:
  Life(void* context, uint64_t channel, uint64_t number)
      : plan_(channel, number),
        own_(seed + channel * 77 + number * 5 + static_cast<uint64_t>(rank_number)),
        context_(context),
        channel_(channel),
        number_(number) {}

  void run() {
    const bool there = plan_.sends ? connect() : accept();
    if (there) {
      ++connections;
      move();
    }
    // Of an abort the requests stay as they are, and may be written or read until the end of this.
    nap(any(20) * 1000);
    if (comm_ != nullptr) {
      const bool first = any(2) == 0 && plan_.ending == kOrderly;
      if (first) deregister();
      const double since = now_s();
      if ((plan_.sends ? net->close_send(comm_) : net->close_recv(comm_)) != kSuccess) fail("close");
      if (now_s() - since > 5) fail("close took " + std::to_string(now_s() - since) + " s");
    }
    for (Request& request : under_way_)
      if (!plan_.sends) check_untouched(&request, false);
    if (listener_ != nullptr && net->close_listen(listener_) != kSuccess) fail("close of the listener");
  }

 private:
  uint64_t any(uint64_t limit) { return own_() % limit; }
  static void nap(uint64_t us) { usleep(static_cast<useconds_t>(us)); }
  [[noreturn]] void fail(const std::string& what) const {
    broken("channel " + std::to_string(channel_) + " life " + std::to_string(number_) + " ending " +
           std::to_string(plan_.ending) + (plan_.sends ? " sender: " : " receiver: ") + what);
  }
  // Whether an error is what the other end has done on purpose.
  bool excused() const {
    if (peer_gone()) return true;
    switch (plan_.ending) {
      case kSenderAborts:
      case kSenderTakesBack:
        return !plan_.sends;
      case kReceiverAborts:
        return plan_.sends;
      case kBothAbort:
      case kGivenUp:  // the receiver waits a short time only, too
        return true;
      case kDeaf:
        return plan_.sends;
      default:
        return false;
    }
  }
  bool breaks() const {
    switch (plan_.ending) {
      case kSenderAborts:
      case kSenderTakesBack:
        return plan_.sends;
      case kReceiverAborts:
        return !plan_.sends;
      case kBothAbort:
        return true;
      default:
        return false;
    }
  }

  bool accept() {
    Handle mine{channel_, number_, {}};
    int devices = 0;
    if (net->devices(&devices) != kSuccess) fail("devices");
    if (net->listen(context_, static_cast<int>(plan_.device % static_cast<uint64_t>(devices)), mine.handle,
                    &listener_) != kSuccess)
      fail("listen");
    publish(mine);
    const double since = now_s();
    if (plan_.ending == kDeaf) {
      nap(any(4) == 0 ? any(100'000) : any(2000));
      if (net->close_listen(std::exchange(listener_, nullptr)) != kSuccess) fail("close of the listener");
      return false;
    }
    while (comm_ == nullptr) {
      void* unused = nullptr;
      if (net->accept(listener_, &comm_, &unused) != kSuccess) fail("accept");
      if (peer_gone()) break;
      if (plan_.ending == kGivenUp && now_s() > since + 0.05 + 0.001 * static_cast<double>(any(200))) break;
      if (now_s() > since + kPatienceS) fail("nobody has connected");
      nap(200);
    }
    if (any(2) == 0 && net->close_listen(std::exchange(listener_, nullptr)) != kSuccess)
      fail("close of the listener");
    return comm_ != nullptr;
  }

  bool connect() {
    const double since = now_s();
    Handle peer;
    for (;; nap(200)) {
      std::lock_guard<std::mutex> held(handles_lock);
      auto found = handles.find({channel_, number_});
      if (found != handles.end()) {
        peer = found->second;
        handles.erase(found);
        break;
      }
      if (peer_gone()) return false;
      if (now_s() > since + 2 * kPatienceS) fail("the peer has published no handle");
    }
    void* context = context_;
    Config config{-1};
    if (plan_.ending == kGivenUp && net->init(&context, 7, &config, log_line, nullptr) != kSuccess)
      fail("init");
    const double begun = now_s();
    int devices = 0;
    if (net->devices(&devices) != kSuccess) fail("devices");
    const int device = static_cast<int>(plan_.device % static_cast<uint64_t>(devices));
    const uint64_t asks = plan_.ending == kGivenUp ? 1 + any(30) : UINT64_MAX;
    for (uint64_t asked = 0; comm_ == nullptr && asked < asks; ++asked, nap(200)) {
      void* unused = nullptr;
      Result result = net->connect(context, device, peer.handle, &comm_, &unused);
      if (result != kSuccess && !excused()) fail("connect returned " + std::to_string(result));
      if (result != kSuccess && plan_.ending == kGivenUp) break;
      if (result != kSuccess) return false;
      if (now_s() > begun + kPatienceS) fail("connect comes to no end");
    }
    if (plan_.ending == kGivenUp) {
      if (comm_ != nullptr && net->close_send(std::exchange(comm_, nullptr)) != kSuccess) fail("close");
      if (net->finalize(context) != kSuccess) fail("finalize");
      return false;
    }
    if (plan_.ending == kOrderly) longest(&connect_ms, begun);
    return true;
  }

  void move() {
    const uint64_t depth = 1 + any(8);
    uint64_t posted = 0, done = 0;
    double moved_s = now_s();
    while (done < plan_.count) {
      if (breaks() && posted > plan_.breaks_at && posted > done) {
        if (plan_.ending == kSenderTakesBack) take_back();
        return;
      }
      bool progress = false;
      if (posted < plan_.count && under_way_.size() < depth) {
        if (!post(posted)) return;
        if (under_way_.size() + done > posted) ++posted, progress = true;
      }
      // Any of those under way, not only the oldest.
      for (size_t tries = 0; tries < 2 && !under_way_.empty(); ++tries) {
        const size_t at = tries == 0 ? 0 : any(under_way_.size());
        int finished = 0, size = -1;
        Result result = net->test(under_way_[at].handle, &finished, &size);
        if (result != kSuccess) {
          if (!excused()) fail("test returned " + std::to_string(result));
          return;
        }
        if (finished == 0) continue;
        progress = true;
        if (plan_.ending == kOrderly && !plan_.sends && done > 0) longest(&message_ms, moved_s);
        moved_s = now_s();
        finish(&under_way_[at], size);
        under_way_.erase(under_way_.begin() + static_cast<ptrdiff_t>(at));
        ++done;
        ++messages;
      }
      if (progress) {
        moved_s = now_s();
      } else {
        if (now_s() > moved_s + kPatienceS) fail("nothing has moved");
        nap(any(3) == 0 ? 0 : 100);
      }
    }
  }

  // False: the connection is over, which is allowed.
  bool post(uint64_t number) {
    Request request;
    request.number = number;
    const size_t bytes = plan_.sends ? plan_.sizes[number] : plan_.rooms[number];
    request.data.reserve(bytes + 1);  // an address to register also for a message of no byte
    request.data.assign(bytes, 0xee);
    if (plan_.sends)
      for (size_t i = 0; i < bytes; ++i) request.data[i] = byte_of(plan_.key + number, i);
    void* data = request.data.data();
    size_t room = bytes;
    int tag = static_cast<int>(number % 3);
    auto register_it = [&](void** memory) {
      if (net->reg_mr(comm_, data, std::max<size_t>(bytes, 1), kPointerHost, memory) != kSuccess)
        fail("regMr");
    };
    register_it(&request.memory);
    if (number % 4 == 0) register_it(&request.memory_again);
    Result result = plan_.sends
                        ? net->isend(comm_, data, bytes, tag, request.memory, nullptr, &request.handle)
                        : net->irecv(comm_, 1, &data, &room, &tag, &request.memory, nullptr, &request.handle);
    if (result != kSuccess) {
      if (!excused()) fail("post returned " + std::to_string(result));
      return false;
    }
    if (request.memory_again != nullptr && any(2) == 0) {  // one of two registrations
      if (net->dereg_mr(comm_, std::exchange(request.memory_again, nullptr)) != kSuccess) fail("deregMr");
    }
    if (request.handle == nullptr) {
      deregister(&request);
      return true;
    }
    under_way_.push_back(std::move(request));
    return true;
  }

  void finish(Request* request, int size) {
    if (static_cast<size_t>(size) != plan_.sizes[request->number])
      fail("size of message " + std::to_string(request->number) + " is " + std::to_string(size));
    if (!plan_.sends) check_untouched(request, true);
    memset(request->data.data(), 0xaa, request->data.size());  // the application's own
    deregister(request);
  }

  // What a receive has written: its message if it is done, nothing behind it.
  void check_untouched(Request* request, bool done) {
    const size_t size = plan_.sizes[request->number];
    for (size_t i = 0; i < request->data.size(); ++i) {
      const uint8_t right = byte_of(plan_.key + request->number, i);
      const bool good = i >= size ? request->data[i] == 0xee
                        : done    ? request->data[i] == right
                                  : request->data[i] == right || request->data[i] == 0xee;
      if (!good) fail("wrong byte " + std::to_string(i) + " in message " + std::to_string(request->number));
    }
  }

  void deregister(Request* request) {
    for (void** memory : {&request->memory, &request->memory_again})
      if (*memory != nullptr && net->dereg_mr(comm_, std::exchange(*memory, nullptr)) != kSuccess)
        fail("deregMr");
  }
  void deregister() {
    for (Request& request : under_way_) deregister(&request);
  }
  // As NCCL when it aborts.
  void take_back() {
    deregister();
    for (Request& request : under_way_) std::vector<uint8_t>().swap(request.data);
    nap(any(10) * 1000);
  }

  Plan plan_;
  std::mt19937_64 own_;
  void* const context_;
  const uint64_t channel_, number_;
  void *listener_ = nullptr, *comm_ = nullptr;
  std::vector<Request> under_way_;
};

void meet(const char* path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
  auto* at = reinterpret_cast<sockaddr*>(&address);
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (rank_number == 0) {
    if (bind(fd, at, sizeof(address)) != 0 || listen(fd, 1) != 0) broken("no control socket");
    control = ::accept(fd, nullptr, nullptr);
    close(fd);
    return;
  }
  for (int tries = 0; connect(fd, at, sizeof(address)) != 0; ++tries, usleep(10'000))
    if (tries > 1000) broken("nobody listens");
  unlink(path);  // whoever waits for the two to be ready sees it
  control = fd;
}

// A child without exec, at any moment in what the others do.
void fork_on_signal(sigset_t signals) {
  for (int signal = 0; sigwait(&signals, &signal) == 0;) {
    if (fork() != 0) continue;
    usleep(500'000);
    _exit(0);
  }
}

int descriptors() {
  int count = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  rank_number = static_cast<int>(strtol(argv[2], nullptr, 10));
  seed = strtoull(argv[4], nullptr, 10);
  const sigset_t forks = nccl_host::blocked(SIGUSR2);  // before any thread is made
  const uint64_t channels = strtoull(argv[5], nullptr, 10), lives = strtoull(argv[6], nullptr, 10);
  void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) broken(dlerror());
  net = static_cast<const NetV12*>(dlsym(library, "ncclNetPlugin_v12"));
  const int before = descriptors();
  void* context = nullptr;
  Config config{-1};
  if (net == nullptr || net->init(&context, 1, &config, log_line, nullptr) != kSuccess) broken("no plugin");
  meet(argv[3]);
  std::thread ear(listen_to_peer);
  signal(SIGCHLD, SIG_IGN);
  std::thread(fork_on_signal, forks).detach();
  std::vector<std::thread> threads;
  threads.reserve(channels);
  for (uint64_t channel = 0; channel < channels; ++channel)
    threads.emplace_back([=] {
      for (uint64_t life = 0; life < lives && !peer_gone(); ++life) Life(context, channel, life).run();
      if (peer_gone()) longest(&gone_ms, peer_gone_s);
    });
  for (std::thread& thread : threads) thread.join();
  // A peer that has not received the last frames would find this process ended.
  publish({kNoMore, 0, {}});
  for (bool over = false; !over; usleep(1000)) {
    std::lock_guard<std::mutex> held(handles_lock);
    over = peer_gone() || handles.count({kNoMore, 0}) > 0;
  }
  if (net->finalize(context) != kSuccess) broken("finalize");
  shutdown(control, SHUT_WR);
  ear.join();
  close(control);
  if (descriptors() != before)
    broken("descriptors: " + std::to_string(before) + " before, " + std::to_string(descriptors()) + " after");
  printf(
      "{\"connections\": %llu, \"messages\": %llu, \"connect_ms\": %llu, \"message_ms\": %llu, "
      "\"gone_ms\": %llu}\n",
      static_cast<unsigned long long>(connections.load()), static_cast<unsigned long long>(messages.load()),
      static_cast<unsigned long long>(connect_ms.load()), static_cast<unsigned long long>(message_ms.load()),
      static_cast<unsigned long long>(gone_ms.load()));
  return 0;
}
