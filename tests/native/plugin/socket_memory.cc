// What ThreadSanitizer makes of the memory that sockets read and write (transport/tcp/socket_memory.h): one thread sends
// from a buffer, the peer answers, and another thread, which has waited for that, receives the answer into the same
// buffer.
//
// Usage: plugin_socket_memory answer|late. With `late` the first thread sends from the buffer again, ordered by nothing:
// a defect that has to be reported.
#include "transport/tcp/socket_memory.h"

#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>

namespace {

uint8_t buffer[4096];
std::atomic<bool> answered{false};

msghdr whole(iovec* vector) {
  *vector = {buffer, sizeof(buffer)};
  msghdr message{};
  message.msg_iov = vector;
  message.msg_iovlen = 1;
  return message;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const bool late = std::string(argv[1]) == "late";
  int out[2], in[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, out) != 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, in) != 0) return 2;
  memset(buffer, 1, sizeof(buffer));
  std::thread receives([&] {
    iovec vector;
    msghdr message = whole(&vector);
    size_t got = 0;
    while (got < sizeof(buffer)) {
      vector = {buffer + got, sizeof(buffer) - got};
      const ssize_t more = fabricpulse::receive_into(in[0], &message, 0);
      if (more <= 0) return;
      got += static_cast<size_t>(more);
    }
    answered.store(true, std::memory_order_relaxed);  // orders nothing
  });
  usleep(20'000);  // it waits in the call, most likely
  const pid_t peer = fork();
  if (peer == 0) {  // another process: what it does orders nothing here
    uint8_t copy[sizeof(buffer)];
    for (size_t got = 0; got < sizeof(copy);) {
      const ssize_t more = read(out[1], copy + got, sizeof(copy) - got);
      if (more <= 0) _exit(1);
      got += static_cast<size_t>(more);
    }
    _exit(write(in[1], copy, sizeof(copy)) == sizeof(copy) ? 0 : 1);
  }
  iovec vector;
  msghdr message = whole(&vector);
  if (fabricpulse::send_from(out[0], &message, 0) != sizeof(buffer)) return 2;
  while (!answered.load(std::memory_order_relaxed)) usleep(1000);
  if (late) (void)fabricpulse::send_from(out[0], &message, MSG_DONTWAIT);
  receives.join();
  return 0;
}
