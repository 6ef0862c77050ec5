#include "transport/tcp/tcp_lane.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/crc32c.h"
#include "core/frame_check.h"
#include "core/owned_fds.h"
#include "core/socket_budget.h"
#include "transport/tcp/socket_memory.h"

namespace fabricpulse {
namespace {

constexpr uint32_t kQueue = kChunkWindow;      // chunks that wait for the socket
constexpr size_t kStateBuffer = 2048;          // state frames that wait for the next frame boundary
constexpr int kMaxVectors = 32;                // of one sendmsg
constexpr size_t kMaxWrite = 4 * 1024 * 1024;  // bytes of one flush
constexpr size_t kMaxRead = 4 * 1024 * 1024;   // bytes of one poll
constexpr size_t kStaging = 64 * 1024;         // read buffer when frames are small
constexpr size_t kStagingLarge =
    4 * 1024;  // when chunks are large: little is copied out of the staging buffer
constexpr size_t kLargeChunk = 32 * 1024;
constexpr size_t kMeasureBytes = 1024 * 1024;  // the path is measured anew each time so much was sent
constexpr size_t kFrameMax = sizeof(FrameHeader) + sizeof(HeldState);

// One thread reads one lane at a time and leaves nothing in it (a torn header moves to the lane).
thread_local uint8_t staging[kStaging];

class TcpLane final : public LaneTransport {
 public:
  TcpLane(int fd, bool payload_crc) : fd_(own_fd(fd)), payload_crc_(payload_crc) {
    sockaddr_storage local{}, remote{};
    socklen_t size = sizeof(local);
    uint16_t local_port = 0, remote_port = 0;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) == 0) local_port = port_of(local);
    size = sizeof(remote);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&remote), &size) == 0) remote_port = port_of(remote);
    ports_ = (static_cast<uint32_t>(local_port) << 16) | remote_port;
  }
  ~TcpLane() override { close(false); }

  fp_lane_transport kind() const override { return FP_LANE_TCP; }

  bool post_chunk(const FrameHeader& header, const void* payload, const RegisteredMemory*) override {
    if (tail_ - head_ >= kQueue || closed()) return false;
    Outgoing& out = queue_[tail_ % kQueue];
    out.header = header;
    out.payload = static_cast<const uint8_t*>(payload);
    out.sealed = false;
    ++tail_;
    return true;
  }

  bool post_state(const FrameHeader& header, const HeldState* body) override {
    size_t size = sizeof(header) + (body ? sizeof(*body) : 0);
    if (closed()) return false;
    if (state_size_ + size > kStateBuffer) {
      if (state_sent_ == 0) return false;
      memmove(state_, state_ + state_sent_, state_size_ - state_sent_);
      state_size_ -= state_sent_;
      state_sent_ = 0;
      if (state_size_ + size > kStateBuffer) return false;
    }
    FrameHeader sealed = header;
    seal_frame(&sealed, body);
    memcpy(state_ + state_size_, &sealed, sizeof(sealed));
    if (body) memcpy(state_ + state_size_ + sizeof(header), body, sizeof(*body));
    state_size_ += size;
    return true;
  }

  uint32_t chunks_taken() const override { return head_; }
  bool backlog() const override { return head_ != tail_ || state_sent_ != state_size_; }

  bool state_frames_wait() const override { return true; }
  void note_way_back(uint64_t ns) override { budget_.way_back(static_cast<double>(ns) * 1e-9); }

  LaneStatus flush() override {
    LaneStatus status = LaneStatus::kIdle;
    size_t budget = room();
    while (budget > 0 && backlog() && !closed()) {
      iovec vectors[kMaxVectors];
      int count = 0;
      size_t wanted = 0;
      auto add = [&](const void* data, size_t size) {
        if (size == 0) return;
        vectors[count++] = {const_cast<void*>(data), size};
        wanted += size;
      };
      // A chunk that is partly out goes on first; state frames fit only between frames.
      uint32_t next = head_;
      if (front_sent_ > 0) add_chunk(queue_[next++ % kQueue], front_sent_, add);
      bool with_state = state_sent_ != state_size_ && wanted <= budget;
      if (with_state) add(state_ + state_sent_, state_size_ - state_sent_);
      while (next != tail_ && count + 2 <= kMaxVectors && wanted < budget)
        add_chunk(queue_[next++ % kQueue], 0, add);
      for (; wanted > budget; --count) {
        size_t over = std::min(wanted - budget, vectors[count - 1].iov_len);
        vectors[count - 1].iov_len -= over;
        wanted -= over;
        if (vectors[count - 1].iov_len > 0) break;
      }
      msghdr message{};
      message.msg_iov = vectors;
      message.msg_iovlen = static_cast<size_t>(count);
      ssize_t sent = send_from(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0) {
        // The peer's end is closed: in order (EPIPE), or with words unread, which its kernel answers with a reset.
        // poll() reads what it sent last, a farewell perhaps, then that end.
        if (errno == ECONNRESET) reset_ = true;
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS || errno == EPIPE ||
            errno == ECONNRESET)
          return status;
        return LaneStatus::kFailed;
      }
      status = LaneStatus::kProgress;
      consume(static_cast<size_t>(sent), with_state);
      in_socket_ += static_cast<size_t>(sent);
      sent_since_measure_ += static_cast<size_t>(sent);
      if (static_cast<size_t>(sent) < wanted || static_cast<size_t>(sent) >= budget) return status;
      budget -= static_cast<size_t>(sent);
    }
    return status;
  }

  LaneStatus poll(uint32_t lane, LaneSink* sink) override {
    LaneStatus status = LaneStatus::kIdle;
    size_t total = 0;
    while (total < kMaxRead && !closed()) {
      iovec vectors[2];
      int count = 0;
      size_t direct = target_ != nullptr ? body_left_ : 0;
      if (direct > 0) vectors[count++] = {target_, direct};
      size_t stage = large_ ? kStagingLarge : kStaging;
      vectors[count++] = {staging, stage};
      msghdr message{};
      message.msg_iov = vectors;
      message.msg_iovlen = static_cast<size_t>(count);
      ssize_t got = receive_into(fd_, &message, MSG_DONTWAIT);
      if (got < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return status;
        return LaneStatus::kFailed;
      }
      // After an error that a write has been given the kernel reports an end in order; it was none.
      if (got == 0) return reset_ ? LaneStatus::kFailed : LaneStatus::kEnded;
      status = LaneStatus::kProgress;
      size_t size = static_cast<size_t>(got);
      total += size;
      size_t in_place = std::min(size, direct);
      if (in_place > 0) {
        taken_in(target_, in_place);
        if (body_left_ == 0 && !end_body(lane, sink)) return LaneStatus::kCorrupt;
        if (closed()) return status;
      }
      if (size > in_place) {
        LaneStatus parsed = parse(lane, sink, staging, size - in_place);
        if (parsed != LaneStatus::kProgress) return parsed;
      }
      if (size < direct + stage) return status;  // the socket is empty: do not ask again
    }
    return status;
  }

  PathSample sample() const override {
    PathSample sample;
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (closed() || getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return sample;
    sample.valid = true;
    sample.unacknowledged = info.tcpi_unacked;
    // Linux puts off the acknowledgement of what is no more than a full segment, in however many small ones. The SYN
    // counts as acknowledged, not as sent.
    sample.few = info.tcpi_bytes_sent - info.tcpi_bytes_retrans <= info.tcpi_bytes_acked + info.tcpi_snd_mss;
    sample.acknowledged = info.tcpi_bytes_acked;
    sample.probes = info.tcpi_probes;
    sample.sent = info.tcpi_segs_out;
    sample.answers = info.tcpi_segs_in - info.tcpi_data_segs_in;
    sample.unsent = info.tcpi_notsent_bytes;
    sample.window_open = size < offsetof(tcp_info, tcpi_snd_wnd) + sizeof(info.tcpi_snd_wnd) ||
                         info.tcpi_snd_wnd >= info.tcpi_snd_mss;
    sample.rtt_deviation_ns = uint64_t{info.tcpi_rttvar} * 1000;
    sample.rtt_ns = static_cast<uint64_t>(info.tcpi_rtt) * 1000;
    sample.retransmits = info.tcpi_total_retrans;
    sample.ecn_marked = info.tcpi_delivered_ce;
    // A segment that the queue of our own NIC has dropped while nothing else was under way: the kernel tries again by
    // its window probe, after 200 ms or more. Asked to push it tries now.
    const int on = 1;
    if (sample.unsent > 0 && sample.unacknowledged == 0 && sample.window_open)
      setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return sample;
  }

  int wait_fd() const override { return fd_; }
  uint64_t queue_pair() const override { return ports_; }
  uint32_t entropy() const override { return static_cast<uint32_t>(ports_ >> 16); }

  void close(bool orderly) override {
    if (closed()) return;
    // A reset instead of an orderly end: what still waits in the socket must not trickle out after a fence.
    linger hard{1, 0};
    if (!orderly) setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close_owned(fd_);
    fd_ = -1;
    target_ = nullptr;
  }

 private:
  struct Outgoing {
    FrameHeader header;
    const uint8_t* payload = nullptr;
    bool sealed = false;
  };

  static uint16_t port_of(const sockaddr_storage& address) {
    if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }

  bool closed() const { return fd_ < 0; }

  // Bytes that the socket should be given now. State frames never wait for room.
  size_t room() {
    if (head_ == tail_) return kMaxWrite;
    if (sent_since_measure_ >= kMeasureBytes) {
      sent_since_measure_ = 0;
      tcp_info info{};
      socklen_t size = sizeof(info);
      if (getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_min_rtt != UINT32_MAX) {
        budget_.measured(static_cast<double>(info.tcpi_delivery_rate), info.tcpi_min_rtt * 1e-6);
      }
    }
    const size_t limit = budget_.limit();
    if (in_socket_ > limit / 2) {  // at most; what has left meanwhile is asked about seldom
      int queued = 0;
      if (ioctl(fd_, SIOCOUTQ, &queued) != 0) return kMaxWrite;
      in_socket_ = static_cast<size_t>(queued);
    }
    if (in_socket_ < limit) return std::min(kMaxWrite, limit - in_socket_);
    return front_sent_ == 0 ? state_size_ - state_sent_ : 0;
  }

  // The checksum is computed just before the socket copies the payload: it is read from memory once.
  void seal(Outgoing* out) const {
    if (out->sealed) return;
    out->sealed = true;
    if (payload_crc_) {
      out->header.flags |= kFlagPayloadCrc;
      out->header.payload_crc = crc32c(0, out->payload, out->header.length);
    }
    seal_frame(&out->header, nullptr);
  }

  template <typename Add>
  void add_chunk(Outgoing& out, size_t skip, Add&& add) const {
    constexpr size_t kHeader = sizeof(FrameHeader);
    seal(&out);
    if (skip < kHeader) {
      add(reinterpret_cast<const uint8_t*>(&out.header) + skip, kHeader - skip);
      add(out.payload, out.header.length);
    } else {
      add(out.payload + (skip - kHeader), out.header.length - (skip - kHeader));
    }
  }

  // Moves the positions by what the socket took, in the order in which flush() has offered it.
  void consume(size_t sent, bool with_state) {
    if (front_sent_ > 0) sent = consume_chunk(sent);
    if (with_state && front_sent_ == 0) {
      size_t taken = std::min(sent, state_size_ - state_sent_);
      state_sent_ += taken;
      sent -= taken;
      if (state_sent_ == state_size_) state_sent_ = state_size_ = 0;
    }
    while (sent > 0) sent = consume_chunk(sent);
  }

  size_t consume_chunk(size_t sent) {
    size_t left = sizeof(FrameHeader) + queue_[head_ % kQueue].header.length - front_sent_;
    size_t taken = std::min(sent, left);
    front_sent_ += taken;
    if (taken == left) {
      front_sent_ = 0;
      ++head_;
    }
    return sent - taken;
  }

  // `size` bytes of the payload lie at `at`, in their place.
  void taken_in(const uint8_t* at, size_t size) {
    if (header_.flags & kFlagPayloadCrc) body_crc_ = crc32c(body_crc_, at, size);
    target_ += size;
    body_left_ -= static_cast<uint32_t>(size);
  }

  // False: the payload is not what was sent.
  bool end_body(uint32_t lane, LaneSink* sink) {
    bool taken = target_ != nullptr;
    target_ = nullptr;
    in_body_ = false;
    if (!taken) return true;
    if ((header_.flags & kFlagPayloadCrc) && body_crc_ != header_.payload_crc) return false;
    sink->chunk_ends(lane, header_);
    return true;
  }

  // Takes `size` bytes; keeps a torn frame head for the next time. kProgress, or why the lane has to fail.
  LaneStatus parse(uint32_t lane, LaneSink* sink, const uint8_t* data, size_t size) {
    while (size > 0) {
      if (in_body_) {
        size_t taken = std::min<size_t>(size, body_left_);
        if (target_ != nullptr) {
          memcpy(target_, data, taken);
          taken_in(target_, taken);
        } else {
          body_left_ -= static_cast<uint32_t>(taken);
        }
        data += taken;
        size -= taken;
        if (body_left_ == 0 && !end_body(lane, sink)) return LaneStatus::kCorrupt;
        if (closed()) return LaneStatus::kProgress;
        continue;
      }
      // Header, and for state frames the body too, are gathered before anything is interpreted.
      size_t need = sizeof(FrameHeader);
      if (torn_ >= need) need += header_.length;
      size_t taken = std::min(size, need - torn_);
      memcpy(frame_ + torn_, data, taken);
      torn_ += taken;
      data += taken;
      size -= taken;
      if (torn_ < need) continue;
      if (torn_ == sizeof(FrameHeader)) {
        memcpy(&header_, frame_, sizeof(header_));
        if (!frame_plausible(header_))
          return frame_intact(header_, nullptr) ? LaneStatus::kProtocol : LaneStatus::kCorrupt;
        if (header_.type == FrameType::kChunk) {
          torn_ = 0;
          LaneStatus begun = begin_body(lane, sink);
          if (begun != LaneStatus::kProgress || closed()) return begun;
          continue;
        }
        if (header_.length > 0) continue;
      }
      HeldState body;
      if (header_.length > 0) memcpy(&body, frame_ + sizeof(FrameHeader), sizeof(body));
      torn_ = 0;
      large_ = false;
      if (!frame_intact(header_, header_.length > 0 ? &body : nullptr)) return LaneStatus::kCorrupt;
      if (!sink->state_frame(lane, header_, body)) return LaneStatus::kProtocol;
      if (closed()) return LaneStatus::kProgress;
    }
    return LaneStatus::kProgress;
  }

  LaneStatus begin_body(uint32_t lane, LaneSink* sink) {
    bool fatal = false;
    if (!frame_intact(header_, nullptr)) return LaneStatus::kCorrupt;
    large_ = header_.length >= kLargeChunk;
    uint8_t* target = sink->chunk_begins(lane, header_, &fatal);
    if (fatal) return LaneStatus::kProtocol;
    if (closed()) return LaneStatus::kProgress;
    in_body_ = true;
    body_left_ = header_.length;
    body_crc_ = 0;
    target_ = target;
    if (body_left_ == 0 && !end_body(lane, sink)) return LaneStatus::kCorrupt;
    return LaneStatus::kProgress;
  }

  int fd_;
  bool reset_ = false;
  const bool payload_crc_;
  uint64_t ports_ = 0;

  Outgoing queue_[kQueue];
  uint32_t head_ = 0, tail_ = 0;
  SocketBudget budget_;
  size_t in_socket_ = 0, sent_since_measure_ = 0;
  size_t front_sent_ = 0;  // bytes of the first queued chunk (header included) that are out
  uint8_t state_[kStateBuffer];
  size_t state_size_ = 0, state_sent_ = 0;

  FrameHeader header_;  // of the frame being read
  uint8_t frame_[kFrameMax];
  size_t torn_ = 0;  // bytes of frame_ that are there
  bool in_body_ = false, large_ = false;
  uint8_t* target_ = nullptr;  // nullptr within a body: throw away
  uint32_t body_left_ = 0, body_crc_ = 0;
};

}  // namespace

std::unique_ptr<LaneTransport> make_tcp_lane(int fd, bool payload_crc) {
  return std::make_unique<TcpLane>(fd, payload_crc);
}

}  // namespace fabricpulse
