// What the kernel reads and writes of this process's memory for a socket, as ThreadSanitizer should see it.
//
// What arrives may be the consequence of what this process has sent, by way of other processes: a ring receives into
// memory that it has sent from, and posts the receive before the send is done. The kernel has read that memory by the
// time the call returns, but the thread may be stopped before the sanitizer has noted so, while another thread receives
// the answer. So a send counts as read before the call, a receive as written after it, and each send comes before each
// receive that is noted later. Without the sanitizer these are the two system calls.
#ifndef FABRICPULSE_TRANSPORT_TCP_SOCKET_MEMORY_H_
#define FABRICPULSE_TRANSPORT_TCP_SOCKET_MEMORY_H_

#include <sys/socket.h>

#ifdef __SANITIZE_THREAD__
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

extern "C" {
// By other names: some compilers have declarations of their own, and not all the same.
void fabricpulse_tsan_read_range(void* data, unsigned long size) __asm__("__tsan_read_range");
void fabricpulse_tsan_write_range(void* data, unsigned long size) __asm__("__tsan_write_range");
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace fabricpulse {

#ifdef __SANITIZE_THREAD__

inline std::atomic<uint64_t> order_of_sends{0};

inline ssize_t send_from(int fd, const msghdr* message, int flags) {
  for (size_t i = 0; i < message->msg_iovlen; ++i)
    fabricpulse_tsan_read_range(message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
  order_of_sends.fetch_add(1, std::memory_order_acq_rel);
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  const ssize_t sent = sendmsg(fd, message, flags);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return sent;
}

inline ssize_t receive_into(int fd, msghdr* message, int flags) {
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  const ssize_t got = recvmsg(fd, message, flags);
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  order_of_sends.load(std::memory_order_acquire);
  size_t left = got > 0 ? static_cast<size_t>(got) : 0;
  for (size_t i = 0; left > 0 && i < message->msg_iovlen; ++i) {
    const size_t size = std::min(left, message->msg_iov[i].iov_len);
    fabricpulse_tsan_write_range(message->msg_iov[i].iov_base, size);
    left -= size;
  }
  return got;
}

#else

inline ssize_t send_from(int fd, const msghdr* message, int flags) { return sendmsg(fd, message, flags); }
inline ssize_t receive_into(int fd, msghdr* message, int flags) { return recvmsg(fd, message, flags); }

#endif

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_TCP_SOCKET_MEMORY_H_
