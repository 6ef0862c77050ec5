// libFuzzer harness of everything that a broken or malicious peer can send on a lane: framing, chunks,
// reports of what is held (after a fault too), fences, greetings, against one end of a connection with two
// TCP lanes.
//
// The input is a program for the peer. Its first byte says which end is tested; then come steps of one byte
// and its arguments (missing ones are 0): raw bytes, frames with fields from the input, and between them what
// NCCL and the service thread do. Buffers have the exact size of their message, so that one byte written past
// it is found by AddressSanitizer.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/frame_check.h"
#include "core/recv_connection.h"
#include "core/send_connection.h"
#include "fuzz_input.h"
#include "fuzz_standalone.h"
#include "test_runtime.h"
#include "transport/tcp/tcp_lane.h"

using namespace fabricpulse;

namespace {

constexpr uint32_t kLanes = 2;

class TestHost final : public SteppedRuntime {
 public:
  bool fleet_clock(int64_t* fleet_ns) const override {
    *fleet_ns = static_cast<int64_t>(now_ns);
    return true;
  }
};

// The peer's ends of the lanes.
class Peer {
 public:
  ~Peer() {
    for (int fd : fds_)
      if (fd >= 0) close(fd);
  }
  std::unique_ptr<LaneTransport> make(uint32_t lane) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) abort();
    if (fds_[lane] >= 0) close(fds_[lane]);
    fds_[lane] = pair[1];
    return make_tcp_lane(pair[0], true);
  }
  void write(uint32_t lane, const void* data, size_t size) {
    (void)!send(fds_[lane], data, size, MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  void drain() {
    static uint8_t sink[65536];
    for (int fd : fds_)
      while (recv(fd, sink, sizeof(sink), MSG_DONTWAIT) > 0) {
      }
  }
  void frame(uint32_t lane, FrameHeader header, const HeldState* body) {
    seal_frame(&header, body);
    write(lane, &header, sizeof(header));
    if (body != nullptr) write(lane, body, sizeof(*body));
  }

 private:
  int fds_[kLanes] = {-1, -1};
};

HeldState held(FuzzInput* input) {
  HeldState state;
  state.base = input->number();
  uint64_t word = input->number();
  for (uint64_t& bits : state.bitmap) bits = word;
  state.posted = input->number();
  state.disabled = input->byte();
  return state;
}

// Frames that both ends understand.
void common(uint8_t which, FuzzInput* input, Peer* peer) {
  uint32_t lane = input->byte() % kLanes;
  FrameHeader header;
  switch (which % 3) {
    case 0: {
      auto raw = input->bytes(input->byte());
      peer->write(lane, raw.data(), raw.size());
      return;
    }
    case 1:
      header.type = input->byte() % 2 ? FrameType::kPing : FrameType::kPong;
      header.chunk = input->number();
      header.stamp = static_cast<int64_t>(input->number());
      peer->frame(lane, header, nullptr);
      return;
    default: {
      header.type = FrameType::kBye;
      HeldState state = held(input);
      header.length = input->byte() % 2 ? sizeof(HeldState) : 0;
      peer->frame(lane, header, header.length ? &state : nullptr);
    }
  }
}

void greet(FuzzInput* input) {
  Hello hello;
  auto bytes = input->bytes(sizeof(Hello));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(&hello));
  if (hello_plausible(&hello)) {
    if (hello.lane >= kMaxLanes || hello.device >= kMaxNics || hello.primary_device >= kMaxNics) abort();
    if (strnlen(hello.process.host, sizeof(hello.process.host)) == sizeof(hello.process.host)) abort();
  }
  HelloReply reply;
  bytes.resize(std::min(bytes.size(), sizeof(reply)));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(&reply));
  if (reply_plausible(&reply) && (reply.device >= reply.nic_count || reply.nic_count > kMaxNics)) abort();
}

// What NCCL has asked for and waits for; the buffer has the exact size of its message.
template <typename Message>
struct Posted {
  Message* message;
  std::unique_ptr<uint8_t[]> data;
  size_t size;
};

template <typename Message>
class Requests {
 public:
  // post(data) gives the request, nullptr for "not now".
  template <typename Post>
  void add(size_t size, Post&& post) {
    std::unique_ptr<uint8_t[]> data(new uint8_t[std::max<size_t>(size, 1)]());
    Message* message = post(data.get());
    if (message != nullptr) posted_.push_back({message, std::move(data), size});
  }
  // Forgets those of which test(posted) says that they are over.
  template <typename Test>
  void test(Test&& test) {
    posted_.erase(std::remove_if(posted_.begin(), posted_.end(), test), posted_.end());
  }

 private:
  std::vector<Posted<Message>> posted_;
};

void test_receiver(FuzzInput* input) {
  TestHost host;
  Peer peer;
  {
    RecvConnection receiver(&host, 1, 0, 1, kLanes);
    auto join = [&](uint32_t lane, uint32_t epoch) {
      Hello hello;
      hello.lane = lane;
      hello.lanes = kLanes;
      hello.epoch = epoch;
      HeldState state;
      if (receiver.hello(hello, 0, &state, host.now_ns) == HelloStatus::kOk)
        receiver.attach(lane, epoch, peer.make(lane), host.now_ns);
    };
    receiver.lock();
    for (uint32_t lane = 0; lane < kLanes; ++lane) join(lane, 1);
    Requests<ReceiveMessage> requests;
    while (input->more()) {
      uint8_t step = input->byte();
      switch (step % 8) {
        case 0:
          common(input->byte(), input, &peer);
          break;
        case 1:
        case 2: {
          FrameHeader header;
          uint32_t lane = input->byte() % kLanes;
          header.chunk = input->number();
          header.message = static_cast<uint32_t>(input->number());
          header.message_bytes = input->word();
          header.offset = input->word();
          header.length = step % 8 == 1 && header.offset <= header.message_bytes
                              ? header.message_bytes - header.offset
                              : input->word();
          header.flags = input->byte();
          header.stamp = static_cast<int64_t>(input->number());
          std::vector<uint8_t> payload(std::min<uint32_t>(header.length, 65536), step);
          peer.frame(lane, header, nullptr);
          peer.write(lane, payload.data(), payload.size());
          break;
        }
        case 3: {
          FrameHeader header;
          header.type = FrameType::kFence;
          header.offset = input->byte() % (kLanes + 1);
          header.message = static_cast<uint32_t>(input->number());
          peer.frame(input->byte() % kLanes, header, nullptr);
          break;
        }
        case 4: {
          size_t capacity = input->word();
          requests.add(capacity,
                       [&](void* data) { return receiver.receive(data, capacity, nullptr, host.now_ns); });
          break;
        }
        case 5:
          join(input->byte() % kLanes, static_cast<uint32_t>(input->number()));
          break;
        case 6:
          host.now_ns += uint64_t{input->byte()} * 1'000'000;
          receiver.tick(host.now_ns, 1'000'000);
          break;
        default:
          greet(input);
      }
      host.now_ns += 300'000;
      receiver.drive(host.now_ns);
      peer.drain();
      if (receiver.lost()) break;
      requests.test([&](const Posted<ReceiveMessage>& posted) {
        uint32_t size = 0;
        bool truncated = false;
        if (!receiver.test(posted.message, &size, &truncated, host.now_ns)) return false;
        if (truncated != (size > posted.size)) abort();
        return true;
      });
    }
    receiver.close(host.now_ns);
    receiver.unlock();
  }
}

void test_sender(FuzzInput* input) {
  TestHost host;
  Peer peer;
  {
    SendConnection sender(&host, 1, 0, 1, {{0, 0}, {1, 1}});
    sender.lock();
    auto dial = [&](FuzzInput* from) {
      DialPlan plan;
      for (int tries = 0; tries < 4 && sender.want_dial(host.now_ns, &plan); ++tries) {
        HelloReply reply;
        reply.epoch = plan.epoch;
        reply.nic_count = 2;
        if (from != nullptr) {
          reply.status = static_cast<HelloStatus>(from->byte() % 5);
          reply.held = held(from);
        }
        bool well = reply.status == HelloStatus::kOk;
        sender.dialled(plan.lane, plan.epoch, well ? peer.make(plan.lane) : nullptr, &reply, host.now_ns);
      }
    };
    dial(nullptr);
    Requests<SendMessage> requests;
    while (input->more()) {
      switch (input->byte() % 7) {
        case 0:
          common(input->byte(), input, &peer);
          break;
        case 1:
        case 2: {
          FrameHeader header;
          uint8_t kind = input->byte();
          header.type = kind % 2 ? FrameType::kFenced : FrameType::kState;
          header.length = sizeof(HeldState);
          header.offset = kind % 2 ? input->byte() % (kLanes + 1) : 0;
          header.message = kind % 2 ? static_cast<uint32_t>(input->number()) : 0;
          header.message_bytes = kind >> 5;
          HeldState state = held(input);
          peer.frame(input->byte() % kLanes, header, &state);
          break;
        }
        case 3: {
          uint32_t size = input->word();
          requests.add(size,
                       [&](const void* data) { return sender.send(data, size, 0, nullptr, host.now_ns); });
          break;
        }
        case 4:
          host.now_ns += uint64_t{input->byte()} * 20'000'000;
          dial(input);
          break;
        case 5:
          host.now_ns += uint64_t{input->byte()} * 1'000'000;
          sender.tick(host.now_ns, 1'000'000);
          break;
        default:
          sender.repath(input->byte() % kLanes, 0, true, host.now_ns);
      }
      host.now_ns += 300'000;
      sender.drive(host.now_ns);
      peer.drain();
      if (sender.lost()) break;
      requests.test([&](const Posted<SendMessage>& posted) {
        uint32_t size = 0;
        if (!sender.test(posted.message, &size, host.now_ns)) return false;
        if (size != posted.size) abort();
        return true;
      });
    }
    sender.close(host.now_ns);
    sender.unlock();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  if (input.byte() % 2) {
    test_sender(&input);
  } else {
    test_receiver(&input);
  }
  return 0;
}
