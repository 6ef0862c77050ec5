#include "control/server.h"

#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "control/controlled_plugin.h"
#include "core/owned_fds.h"
#include "core/threads.h"
#include "job/run_files.h"

namespace fabricpulse {
namespace {

constexpr size_t kMaxMessage = 256 * 1024;
constexpr size_t kMaxClients = 64;
constexpr uint32_t kMaxInvalid = 16;                     // messages without sense, then the client has to go
constexpr uint64_t kUnprovenNs = 2'000'000'000;          // who has asked nothing yet
constexpr uint64_t kIdleNs = UINT64_C(600'000'000'000);  // who has
// A token is 25 us of a processor; what takes longer, as a large answer does, costs in proportion. New clients and further
// messages each get 1 % of what the process uses, but never more than a 400th of a processor. The least are for a process
// that does nothing: a command gets in within two seconds behind a full queue of those who knock without pause, and the
// status of a thousand connections, in twenty pages, is there in some five.
constexpr double kTokenNs = 25'000;
constexpr CostShare::Terms kAcceptTerms{0.01, kTokenNs, 50, 100}, kAnswerTerms{0.01, kTokenNs, 12, 100};
constexpr int kQueued = 32;  // clients that are not let in yet
constexpr double kAcceptBurst = 24, kAnswerBurst = 16;
constexpr int kAtOnce = 16;  // of each kind, before the loop begins anew
constexpr uint64_t kPollNs = 500'000'000;

uint64_t cpu_ns(clockid_t whose) {
  timespec used{};
  clock_gettime(whose, &used);
  return static_cast<uint64_t>(used.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(used.tv_nsec);
}

}  // namespace

ControlServer::ControlServer(ControlledPlugin* engine)
    : engine_(engine),
      requests_(engine),
      accept_share_(kAcceptTerms),
      answer_share_(kAnswerTerms),
      accepts_(kAcceptTerms.least_per_second, kAcceptBurst),
      answers_(kAnswerTerms.least_per_second, kAnswerBurst) {}

ControlServer::~ControlServer() {
  if (thread_.joinable()) {
    uint64_t one = 1;
    (void)!write(stop_, &one, sizeof(one));
    thread_.join();
  }
  for (auto& entry : clients_) close_owned(entry.second.fd);
  for (int fd : {fd_, new_, known_, stop_})
    if (fd >= 0) close_owned(fd);
  if (!path_.empty()) unlink(path_.c_str());
}

void ControlServer::open(std::string* complaint) {
  const Config& config = engine_->config();
  std::string path = config.run_dir + "/plugin/" + process_file_name() + ".sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    *complaint = "no control socket: the path " + path + " is too long";
    return;
  }
  memcpy(address.sun_path, path.c_str(), path.size() + 1);
  mode_t mode = 0600;
  if (!config.control_group.empty()) {
    group* entry = getgrnam(config.control_group.c_str());
    if (entry != nullptr) {
      group_ = entry->gr_gid;
      mode = 0660;
    } else {
      *complaint = "FABRICPULSE_CONTROL_GROUP=" + config.control_group +
                   " is no group of this host; only the job's user and root may connect";
    }
  }
  int fd = own_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  unlink(path.c_str());
  // The mode is set before anybody can connect: between bind and listen.
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      chmod(path.c_str(), mode) != 0 ||
      (mode == 0660 && chown(path.c_str(), static_cast<uid_t>(-1), group_) != 0) ||
      listen(fd, kQueued) != 0) {
    *complaint += "no control socket: " + path + ": " + strerror(errno);
    if (fd >= 0) close_owned(fd);
    return;
  }
  fd_ = fd;
  path_ = path;
  new_ = own_fd(epoll_create1(EPOLL_CLOEXEC));
  known_ = own_fd(epoll_create1(EPOLL_CLOEXEC));
  stop_ = own_fd(eventfd(0, EFD_CLOEXEC));
  if (new_ < 0 || known_ < 0 || stop_ < 0) {
    *complaint += std::string("no control socket: cannot make its descriptors: ") + strerror(errno);
    return;
  }
  buffer_.resize(kMaxMessage);
  thread_ = quiet_thread("fabricpulse-ctl", [this] { run(); });
}

// Without a token the loop does not look at what it would be spent on, and waits for the next one. ppoll, since
// epoll_pwait2, which takes nanoseconds too, is younger than the systems that are supported; and the listening
// socket beside the clients' epoll sets, not in one, since it would go in and out for every client of a flood.
void ControlServer::run() {
  auto safely = [this](auto&& step) {
    try {
      step();
    } catch (const std::exception& error) {  // out of memory: the client may ask again
      engine_->warn(std::string("control socket: ") + error.what());
    }
  };
  uint64_t paid_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);  // until then what this thread has used is paid for
  auto note_use = [this](uint64_t now) {
    const uint64_t used = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    accepts_.set_rate(accept_share_.note(now, used));
    answers_.set_rate(answer_share_.note(now, used));
  };
  note_use(engine_->now());
  while (true) {
    const bool accepted = accepts_.any(), answered = answers_.any();
    pollfd ready[4] = {{stop_, POLLIN, 0},
                       {new_, POLLIN, 0},
                       {answered ? known_ : -1, POLLIN, 0},
                       {accepted ? fd_ : -1, POLLIN, 0}};
    uint64_t wait = kPollNs;
    for (const TokenBucket* tokens : {&accepts_, &answers_})
      if (!tokens->any()) wait = std::min(wait, tokens->wait_ns());
    timespec until{0, static_cast<long>(wait)};
    bool forever = accepted && answered && clients_.empty();
    int found = ppoll(ready, 4, forever ? nullptr : &until, nullptr);
    uint64_t now = engine_->now();
    // Before they are spent: time that has passed until then must not fill them up afterwards.
    accepts_.advance(now);
    answers_.advance(now);
    if (accept_share_.due(now)) note_use(now);
    if (found < 0) continue;
    if (ready[0].revents != 0) return;
    new_served_ = known_served_ = 0;
    // Who has waited for a token need not be waited for.
    if (ready[3].revents != 0 || (!accepted && accepts_.any())) safely([&] { accept_client(now); });
    if (ready[1].revents != 0) safely([&] { serve_new(now); });
    if (ready[2].revents != 0 || (!answered && answers_.any())) safely([&] { serve_known(now); });
    drop_idle(now);
    // To have waited for a token is for the message that it is spent on to pay.
    if (new_served_ + known_served_ == 0 && !(accepted && answered)) continue;
    const uint64_t used_ns = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    pay(static_cast<double>(used_ns - paid_ns) / kTokenNs);
    paid_ns = used_ns;
  }
}

// A pass of the loop has cost so many tokens, waking up and looking for clients included. A token for each message is
// paid already; the rest is shared by the messages.
void ControlServer::pay(double tokens) {
  const uint32_t served = new_served_ + known_served_;
  if (served == 0) return;
  const double each = std::max(tokens / served - 1, 0.0);
  accepts_.take(each * new_served_);
  answers_.take(each * known_served_);
}

void ControlServer::serve_new(uint64_t now) {
  epoll_event events[kAtOnce];
  int count = epoll_wait(new_, events, kAtOnce, 0);
  for (int i = 0; i < count; ++i) {
    uint64_t id = events[i].data.u64;
    auto found = clients_.find(id);
    if (found == clients_.end()) continue;
    epoll_ctl(new_, EPOLL_CTL_DEL, found->second.fd, nullptr);
    if (watch(known_, found->second.fd, id) != 0) {
      drop(id);
      continue;
    }
    serve(id, now);
  }
}

// One message at a time: who has been served goes to the end of the set's queue (epoll_wait(2), maxevents), so
// that the clients take turns. A client alone has not read its answer yet, and rarely has sent more.
void ControlServer::serve_known(uint64_t now) {
  epoll_event event;
  for (int i = 0; i < kAtOnce && answers_.any() && epoll_wait(known_, &event, 1, 0) == 1; ++i) {
    serve(event.data.u64, now);
    if (clients_.size() == 1) return;
  }
}

int ControlServer::watch(int set, int fd, uint64_t id) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

void ControlServer::accept_client(uint64_t now) {
  int fd = own_fd(accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) accepts_.empty();  // later
    return;
  }
  accepts_.take();
  ++new_served_;
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  Client client;
  client.fd = fd;
  client.received_ns = now;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) {
    client.may_change = credentials.uid == geteuid() || credentials.uid == 0;
    client.may_read =
        client.may_change || group_ != static_cast<gid_t>(-1);  // the mode has let it in by its group
  }
  int room = 2 * kMaxMessage;
  (void)!setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
  make_room();
  uint64_t id = next_client_++;
  clients_[id] = client;
  if (watch(new_, fd, id) != 0) drop(id);
}

// Closes one client when there is no room for another: where more than half have sent no valid request yet, the oldest
// of those, else the one of the others that has been idle longest. So opening sockets all day cannot displace clients
// that ask now and then, and keeping many open cannot displace a new one before it has sent its request.
void ControlServer::make_room() {
  if (clients_.size() < kMaxClients) return;
  auto unproven = static_cast<size_t>(std::count_if(clients_.begin(), clients_.end(),
                                                    [](const auto& entry) { return !entry.second.proven; }));
  bool from_proven = unproven <= kMaxClients / 2;
  auto least = std::min_element(clients_.begin(), clients_.end(), [&](const auto& a, const auto& b) {
    if (a.second.proven != b.second.proven) return a.second.proven == from_proven;
    return a.second.received_ns < b.second.received_ns;
  });
  drop(least->first);
}

void ControlServer::drop(uint64_t id) {
  auto found = clients_.find(id);
  if (found == clients_.end()) return;
  close_owned(found->second.fd);  // leaves its epoll set by itself
  clients_.erase(found);
}

void ControlServer::drop_idle(uint64_t now) {
  for (auto it = clients_.begin(); it != clients_.end();) {
    uint64_t limit = it->second.proven ? kIdleNs : kUnprovenNs;
    uint64_t id = it->first;
    bool late = elapsed(now, it->second.received_ns) >= limit;
    ++it;
    if (late) drop(id);
  }
}

// Answers one message of a client.
void ControlServer::serve(uint64_t id, uint64_t now) {
  auto found = clients_.find(id);
  if (found == clients_.end()) return;
  Client& client = found->second;
  iovec vector{buffer_.data(), buffer_.size()};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  ssize_t got = recvmsg(client.fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {  // to hang up costs nothing
    drop(id);
    return;
  }
  // An answer that cannot be made costs, too. The first message is paid for with the connection.
  if (client.known) answers_.take();
  ++(client.known ? known_served_ : new_served_);
  client.known = true;
  std::string text;
  if (message.msg_flags & MSG_TRUNC) {
    text = ControlRequests::error("", {"bad_request", "the message is longer than 256 KiB"});
  } else {
    text = requests_.answer(buffer_.data(), static_cast<size_t>(got), client.may_read, client.may_change);
  }
  bool sense = text.compare(0, 10, "{\"ok\":true") == 0;
  client.received_ns = now;
  client.proven |= sense;
  client.invalid_requests = sense ? 0 : client.invalid_requests + 1;
  ssize_t sent = send(client.fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent < 0 && errno == EMSGSIZE) {  // net.core.wmem_max is below what anybody has: still no silence
    text = ControlRequests::error("", {"too_long",
                                       "the answer does not fit into a message of this host; ask for "
                                       "less (limit) or raise net.core.wmem_max"});
    sent = send(client.fd, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  if (sent < 0 || !client.may_read || client.invalid_requests >= kMaxInvalid) drop(id);
}

}  // namespace fabricpulse
