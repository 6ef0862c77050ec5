// Memory that the application has back is nobody's to touch: both ends of a connection over four TCP lanes, whose bytes
// a relay carries in pieces, late, one way only or not at all, while either end fails lanes. Each message has pages of
// its own, which cannot be read or written from the moment that test() has said that it is done: a lane that still does
// ends the program (a signal, or EFAULT of the system call).
//
// Holds in addition: every message arrives once, in order, with its bytes.
//
// Usage:
//   plugin_returned_memory faults SEED MESSAGES FAULTS   prints what happened
//   plugin_returned_memory claims SEED                   a peer that says it holds what has not been sent
//   plugin_returned_memory overlap                       a peer that sends a message twice at a time
//   plugin_returned_memory truncate                      one whose message grows while it arrives
//   plugin_returned_memory deregister                    the application takes memory back before its requests are done
// Exit 1 with a line of what broke.
#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/frame_check.h"
#include "core/recv_connection.h"
#include "core/send_connection.h"
#include "pages.h"
#include "strangers.h"
#include "test_runtime.h"
#include "transport/tcp/tcp_lane.h"

using namespace fabricpulse;

namespace {

ssize_t no_fault(long result, const char* call) {
  if (result < 0 && errno == EFAULT) broken(std::string(call) + " touched memory that was given back");
  return static_cast<ssize_t>(result);
}

}  // namespace

// In place of libc's, for the lanes.
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return no_fault(syscall(SYS_sendmsg, fd, message, flags), "sendmsg");
}
extern "C" ssize_t recvmsg(int fd, msghdr* message, int flags) {
  return no_fault(syscall(SYS_recvmsg, fd, message, flags), "recvmsg");
}

namespace {

uint8_t byte_of(uint64_t message, size_t at) {
  return static_cast<uint8_t>(message * 31 + at * 7 + (at >> 8));
}

// The network of one incarnation of a lane: what one end writes waits here until it is carried on.
class Link {
 public:
  // The ends that are the lanes'.
  int sender = -1, receiver = -1;
  const uint32_t nic;

  explicit Link(uint32_t on_nic) : nic(on_nic) {
    int pair[2];
    const int room = 20'000;  // so that chunks leave in pieces
    for (int i = 0; i < 2; ++i) {
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) broken("socketpair");
      for (int fd : pair) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
      (i == 0 ? sender : receiver) = pair[0];
      ends_[i] = pair[1];
    }
  }
  ~Link() {
    for (int fd : ends_)
      if (fd >= 0) close(fd);
  }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Carries up to `most` bytes each way; `forward`, `back`: that way works.
  void carry(size_t most, bool forward, bool back) {
    if (forward) one_way(0, most);
    if (back) one_way(1, most);
  }
  bool over() const { return ends_[0] < 0 && ends_[1] < 0; }

 private:
  void one_way(int from, size_t most) {
    uint8_t buffer[4096];
    for (size_t carried = 0; ends_[from] >= 0 && carried < most;) {
      const size_t wanted = std::min(sizeof(buffer), most - carried);
      ssize_t got = recv(ends_[from], buffer, wanted, MSG_PEEK);
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) {  // that end is closed, and the other learns of it
        for (int& fd : ends_)
          if (fd >= 0) close(fd), fd = -1;
        return;
      }
      ssize_t sent =
          ends_[1 - from] < 0 ? got : send(ends_[1 - from], buffer, static_cast<size_t>(got), MSG_NOSIGNAL);
      if (sent < 0) return;
      if (recv(ends_[from], buffer, static_cast<size_t>(sent), 0) != sent) broken("the relay loses bytes");
      carried += static_cast<size_t>(sent);
    }
  }
  int ends_[2] = {-1, -1};
};

class Simulation {
 public:
  Simulation(uint32_t seed, uint64_t messages, uint64_t faults)
      : random_(seed), messages_(messages), faults_left_(faults), out_(kUnderWay), in_(kUnderWay) {
    std::vector<NicPair> lanes{{0, 0}, {1, 1}, {0, 0}, {1, 1}};
    sender_ = std::make_unique<SendConnection>(&host_, 7, 0, 1, lanes);
    receiver_ = std::make_shared<RecvConnection>(&host_, 7, 0, 1, static_cast<uint32_t>(lanes.size()));
    sender_->set_peer({}, nics_, 2);
    receiver_->set_peer({}, nics_, 2);
  }

  void run() {
    uint64_t idle = 0;
    while (received_ < messages_ || acknowledged_ < messages_) {
      const uint64_t before = received_ + acknowledged_;
      one_round();
      idle = received_ + acknowledged_ == before ? idle + 1 : 0;
      if (idle > 400'000) broken("nothing moves: " + std::to_string(received_) + " received");
      if (sender_->lost() || receiver_->lost()) broken("the connection is lost: " + host_.warned);
    }
    uint64_t moved = 0;
    for (const Lane& lane : sender_->lanes())
      if (lane.record != nullptr) moved += lane.record->resent_chunks;
    printf("{\"messages\": %llu, \"dials\": %llu, \"failed\": %llu, \"resent\": %llu}\n",
           static_cast<unsigned long long>(received_), static_cast<unsigned long long>(dials_),
           static_cast<unsigned long long>(failed_), static_cast<unsigned long long>(moved));
  }

 private:
  static constexpr uint64_t kUnderWay = 6;

  uint64_t any(uint64_t count) { return std::uniform_int_distribution<uint64_t>(0, count - 1)(random_); }

  static size_t size_of(uint64_t message) {
    std::mt19937 own(static_cast<uint32_t>(message * 2654435761u + 1));
    const size_t sizes[] = {own() % 200, own() % kEagerBytes, kEagerBytes - 4 + own() % 10, own() % kMost};
    return sizes[own() % 4];
  }

  void one_round() {
    host_.now_ns += 20'000 + any(400'000);
    const uint64_t now = host_.now_ns;
    for (size_t i = 0; i < links_.size();) {
      Link& link = *links_[i];
      const uint32_t nic = link.nic;
      if (any(2) == 0) link.carry(1 + any(60'000), !mute_[nic], !deaf_[nic]);
      if (link.over()) {
        links_.erase(links_.begin() + static_cast<ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    application(now);
    switch (any(4)) {
      case 0:
        sender_->tick(now, 1'000'000);
        dial(now);
        break;
      case 1:
        receiver_->tick(now, 1'000'000);
        break;
      case 2:
        sender_->drive(now);
        break;
      default:
        receiver_->drive(now);
    }
    if (faults_left_ > 0 && any(25) == 0) fault(now);
    if (any(60) == 0) mute_[any(2)] = deaf_[any(2)] = false;
    if (faults_left_ == 0) mute_[0] = mute_[1] = deaf_[0] = deaf_[1] = false;
  }

  void application(uint64_t now) {
    if (posted_ < messages_ && posted_ - received_ < kUnderWay && any(3) == 0) {
      uint8_t* data = in_[posted_ % kUnderWay].open();
      memset(data, 0xee, kMost);
      receives_[posted_ % kUnderWay] =
          receiver_->receive(data, size_of(posted_), in_[posted_ % kUnderWay].memory(), now);
      if (receives_[posted_ % kUnderWay] == nullptr) broken("no receive");
      ++posted_;
    }
    if (sent_ < messages_ && sent_ - acknowledged_ < kUnderWay && any(3) == 0) {
      uint8_t* data = out_[sent_ % kUnderWay].open();
      const size_t size = size_of(sent_);
      for (size_t i = 0; i < size; ++i) data[i] = byte_of(sent_, i);
      sends_[sent_ % kUnderWay] =
          sender_->send(data, static_cast<uint32_t>(size), 0, out_[sent_ % kUnderWay].memory(), now);
      if (sends_[sent_ % kUnderWay] == nullptr) broken("no send");
      ++sent_;
    }
    uint32_t size = 0;
    bool truncated = false;
    if (received_ < posted_ && receiver_->test(receives_[received_ % kUnderWay], &size, &truncated, now)) {
      if (truncated || size != size_of(received_)) broken("message of another size");
      const uint8_t* data = in_[received_ % kUnderWay].data();
      for (size_t i = 0; i < size; ++i)
        if (data[i] != byte_of(received_, i)) broken("wrong byte in message " + std::to_string(received_));
      in_[received_ % kUnderWay].give_back();
      ++received_;
    }
    if (acknowledged_ < sent_ && sender_->test(sends_[acknowledged_ % kUnderWay], &size, now)) {
      out_[acknowledged_ % kUnderWay].give_back();
      ++acknowledged_;
    }
  }

  void fault(uint64_t now) {
    --faults_left_;
    const auto lane = static_cast<uint32_t>(any(4)), nic = static_cast<uint32_t>(any(2));
    switch (any(4)) {
      case 0:
        if (sender_->lanes()[lane].up) ++failed_, sender_->fail_lane(lane, FP_REASON_STALL, now);
        break;
      case 1:
        if (receiver_->lanes()[lane].up) ++failed_, receiver_->fail_lane(lane, FP_REASON_STALL, now);
        break;
      case 2:
        mute_[nic] = true;
        break;
      default:
        deaf_[nic] = true;
    }
  }

  // What TcpTransport and Handshakes do.
  void dial(uint64_t now) {
    DialPlan plan;
    while (sender_->want_dial(now, &plan)) {
      ++dials_;
      const uint32_t nic = sender_->lanes()[plan.lane].nic;
      Hello hello;
      hello.connection = 7;
      hello.lane = plan.lane;
      hello.lanes = 4;
      hello.epoch = plan.epoch;
      hello.flags = plan.flags;
      hello.device = nic;
      HelloReply reply;
      const bool hello_lost = mute_[nic], reply_lost = deaf_[nic];
      if (!hello_lost) reply.status = receiver_->hello(hello, nic, &reply.held, now);
      const bool accepted = !hello_lost && reply.status == HelloStatus::kOk;
      if (!accepted || reply_lost) {
        // The receiver's lane, if it has one now, ends with the next attempt.
        sender_->dialled(plan.lane, plan.epoch, nullptr, hello_lost || reply_lost ? nullptr : &reply, now);
        continue;
      }
      links_.push_back(std::make_unique<Link>(nic));
      receiver_->attach(plan.lane, plan.epoch, make_tcp_lane(links_.back()->receiver, any(2) == 0), now);
      sender_->dialled(plan.lane, plan.epoch, make_tcp_lane(links_.back()->sender, any(2) == 0), &reply, now);
    }
  }

  std::mt19937 random_;
  const uint64_t messages_;
  uint64_t faults_left_;
  SteppedRuntime host_;
  WireNic nics_[2];
  std::vector<std::unique_ptr<Link>> links_;
  bool mute_[2] = {}, deaf_[2] = {};
  std::unique_ptr<SendConnection> sender_;
  std::shared_ptr<RecvConnection> receiver_;
  std::vector<Pages> out_, in_;
  SendMessage* sends_[kUnderWay] = {};
  ReceiveMessage* receives_[kUnderWay] = {};
  uint64_t sent_ = 0, acknowledged_ = 0, posted_ = 0, received_ = 0, dials_ = 0, failed_ = 0;
};

// Two chunks of the same bytes: with the second whole, the message is complete while the first still arrives.
void overlap() {
  ReceiverOfAStranger world;
  Pages pages;
  ReceiveMessage* message = world.receiver.receive(pages.open(), 4096, pages.memory(), world.host.now_ns);
  world.chunk(0, 0, 4096, 0, 4096, 100);
  world.drive();
  world.chunk(1, 1, 4096, 0, 4096, 4096);
  uint32_t size = 0;
  bool truncated = false;
  for (int i = 0; i < 3; ++i) {
    world.drive();
    if (!world.receiver.test(message, &size, &truncated, world.host.now_ns)) continue;
    pages.give_back();
    world.bytes(0, 3996);
    world.drive();
    if (world.receiver.lanes()[0].up) broken("a lane that writes into a message that is done stays up");
    printf("{\"given_back\": true}\n");
    return;
  }
  broken("the message is not done");
}

// The first chunk fits the receive, the second says that the message is larger: test() is an error, and the memory the
// application's.
void truncate_while_it_arrives() {
  ReceiverOfAStranger world;
  Pages pages;
  ReceiveMessage* message = world.receiver.receive(pages.open(), 4096, pages.memory(), world.host.now_ns);
  world.chunk(0, 0, 4096, 0, 2048, 100);
  world.drive();
  world.chunk(1, 1, 8192, 2048, 2048, 2048);
  uint32_t size = 0;
  bool truncated = false;
  world.drive();
  if (world.receiver.test(message, &size, &truncated, world.host.now_ns)) {
    if (!truncated) broken("a message of two sizes is taken");
    pages.give_back();
    world.bytes(0, 1948);
    world.drive();
    if (world.receiver.lanes()[0].up) broken("a lane that writes into a message that is over stays up");
  } else if (world.receiver.lanes()[1].up) {
    broken("the lane that gave a message another size stays up");
  }
  printf("{\"given_back\": true}\n");
}

// The peer says that it holds what waits in a lane that is full.
void claims(uint32_t seed) {
  std::mt19937 random(seed);
  SenderToAStranger world;
  std::vector<Pages> pages(32);
  std::vector<SendMessage*> messages(pages.size());
  uint32_t done = 0;
  for (int i = 0; i < 400; ++i) {
    world.host.now_ns += 10'000'000;
    world.dial(random() % 2 == 0);
    for (size_t m = 0; m < pages.size(); ++m)
      if (messages[m] == nullptr && random() % 4 == 0) {
        uint8_t* data = pages[m].open();
        memset(data, 0x11, kMost);
        messages[m] = world.sender.send(data, 1 + static_cast<uint32_t>(random() % 60'000), 0,
                                        pages[m].memory(), world.host.now_ns);
        if (messages[m] == nullptr) pages[m].give_back();
      }
    world.read(static_cast<int>(random() % 2), 1 + random() % 65536);
    FrameHeader header;
    header.type = FrameType::kState;
    header.length = sizeof(HeldState);
    HeldState state;
    state.base = done;  // about what can be
    for (uint64_t& bits : state.bitmap) bits = uint64_t{random()} & random();
    state.posted = 1000;
    seal_frame(&header, &state);
    const int lane = static_cast<int>(random() % 2);
    (void)!send(world.peer[lane], &header, sizeof(header), MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)!send(world.peer[lane], &state, sizeof(state), MSG_DONTWAIT | MSG_NOSIGNAL);
    world.sender.drive(world.host.now_ns);
    uint32_t size = 0;
    for (size_t m = 0; m < messages.size(); ++m)
      if (messages[m] != nullptr && world.sender.test(messages[m], &size, world.host.now_ns)) {
        messages[m] = nullptr;
        pages[m].give_back();
        ++done;
      }
    world.sender.tick(world.host.now_ns, 10'000'000);
  }
  printf("{\"given_back\": %u}\n", done);
}

// Both ends: a request under way whose memory goes ends the connection first.
void deregister() {
  ReceiverOfAStranger world;
  Pages pages, other;
  ReceiveMessage* message = world.receiver.receive(pages.open(), 4096, pages.memory(), world.host.now_ns);
  world.chunk(0, 0, 4096, 0, 4096, 100);
  world.drive();
  world.receiver.memory_returned(other.memory(), world.host.now_ns);
  if (world.receiver.closed() || world.receiver.broken(world.host.now_ns))
    broken("memory of no request ends all");
  world.receiver.memory_returned(pages.memory(), world.host.now_ns);
  pages.give_back();
  world.bytes(0, 3996);
  world.drive();
  uint32_t size = 0;
  bool truncated = false;
  if (world.receiver.test(message, &size, &truncated, world.host.now_ns))
    broken("a receive that lost its memory is done");
  if (!world.receiver.broken(world.host.now_ns)) broken("a receive that can never be done is no error");

  SenderToAStranger there;
  there.dial(false);
  memset(pages.open(), 1, kMost);
  SendMessage* send = there.sender.send(pages.data(), kMost, 0, pages.memory(), there.host.now_ns);
  there.sender.memory_returned(pages.memory(), there.host.now_ns);
  pages.give_back();
  for (int i = 0; i < 50; ++i) {
    there.host.now_ns += 10'000'000;
    there.read(0, kMost);
    there.sender.tick(there.host.now_ns, 10'000'000);
  }
  if (there.sender.test(send, &size, there.host.now_ns)) broken("a send that lost its memory is done");
  if (!there.sender.broken(there.host.now_ns)) broken("a send that can never be done is no error");
  printf("{\"given_back\": true}\n");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "faults" && argc == 5) {
    Simulation(static_cast<uint32_t>(strtoul(argv[2], nullptr, 10)), strtoull(argv[3], nullptr, 10),
               strtoull(argv[4], nullptr, 10))
        .run();
  } else if (mode == "claims" && argc == 3) {
    claims(static_cast<uint32_t>(strtoul(argv[2], nullptr, 10)));
  } else if (mode == "overlap" && argc == 2) {
    overlap();
  } else if (mode == "truncate" && argc == 2) {
    truncate_while_it_arrives();
  } else if (mode == "deregister" && argc == 2) {
    deregister();
  } else {
    return 2;
  }
  return 0;
}
