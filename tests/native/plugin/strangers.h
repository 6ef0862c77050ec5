// One end of a connection over TCP lanes whose peer is the test, which may break the rules.
#ifndef FABRICPULSE_TESTS_NATIVE_STRANGERS_H_
#define FABRICPULSE_TESTS_NATIVE_STRANGERS_H_

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include <vector>

#include "core/frame_check.h"
#include "core/recv_connection.h"
#include "core/send_connection.h"
#include "pages.h"
#include "test_runtime.h"
#include "transport/tcp/tcp_lane.h"

namespace fabricpulse {

// A receiver with two lanes whose peer is the test.
class ReceiverOfAStranger {
 public:
  ReceiverOfAStranger() : receiver(&host, 7, 0, 1, 2) {
    for (uint32_t lane = 0; lane < 2; ++lane) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) broken("socketpair");
      peer[lane] = pair[1];
      Hello hello;
      hello.lane = lane;
      hello.lanes = 2;
      hello.epoch = 1;
      HeldState state;
      if (receiver.hello(hello, lane, &state, host.now_ns) != HelloStatus::kOk) broken("hello");
      receiver.attach(lane, 1, make_tcp_lane(pair[0], false), host.now_ns);
    }
  }
  ~ReceiverOfAStranger() {
    for (int fd : peer) close(fd);
  }
  // A chunk of message 0, of which only `sent` bytes are sent.
  void chunk(uint32_t lane, uint64_t number, uint32_t message_bytes, uint32_t offset, uint32_t length,
             uint32_t sent) {
    FrameHeader header;
    header.chunk = number;
    header.message_bytes = message_bytes;
    header.offset = offset;
    header.length = length;
    seal_frame(&header, nullptr);
    if (write(peer[lane], &header, sizeof(header)) != sizeof(header)) broken("write");
    bytes(lane, sent);
  }
  void bytes(uint32_t lane, uint32_t count) {
    const std::vector<uint8_t> data(count, 0x55);
    if (send(peer[lane], data.data(), count, MSG_NOSIGNAL) < 0 && errno != EPIPE) broken("write");
  }
  void drive() {
    host.now_ns += 300'000;
    receiver.drive(host.now_ns);
  }

  SteppedRuntime host;
  RecvConnection receiver;
  int peer[2];
};

// A sender whose peer is the test; its lanes' sockets hold little.
class SenderToAStranger {
 public:
  SenderToAStranger() : sender(&host, 7, 0, 1, {{0, 0}, {1, 1}}) {}
  ~SenderToAStranger() {
    for (int fd : peer)
      if (fd >= 0) close(fd);
  }
  void dial(bool payload_crc) {
    DialPlan plan;
    while (sender.want_dial(host.now_ns, &plan)) {
      int pair[2];
      const int room = 20'000;
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) broken("socketpair");
      setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
      if (peer[plan.lane] >= 0) close(peer[plan.lane]);
      peer[plan.lane] = pair[1];
      HelloReply reply;
      reply.held.posted = 1000;
      sender.dialled(plan.lane, plan.epoch, make_tcp_lane(pair[0], payload_crc), &reply, host.now_ns);
    }
  }
  void read(int lane, size_t most) {
    std::vector<uint8_t> sink(most);
    (void)!recv(peer[lane], sink.data(), most, MSG_DONTWAIT);
  }

  SteppedRuntime host;
  SendConnection sender;
  int peer[2] = {-1, -1};
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TESTS_NATIVE_STRANGERS_H_
