// The coordinator's end of reports by datagram: a thread that takes them from the sockets as they come, so
// that a solve or an HTTP request holds up none, and hands them over all at once.
#ifndef FABRICPULSE_CLOCKSYNC_REPORT_INTAKE_H_
#define FABRICPULSE_CLOCKSYNC_REPORT_INTAKE_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "channel_table.h"

namespace fabricpulse {

class ReportIntake {
 public:
  // Binds a UDP socket to each numeric address and port, and starts the thread. Throws std::system_error,
  // std::invalid_argument.
  ReportIntake(const std::vector<std::pair<std::string, std::uint16_t>>& addresses, int receive_buffer);
  ~ReportIntake();
  ReportIntake(const ReportIntake&) = delete;
  ReportIntake& operator=(const ReportIntake&) = delete;

  // Ends the thread and closes the sockets.
  void stop();

  // As ChannelTable's.
  std::uint32_t open_channel(const SipKey& key);
  void close_channel(std::uint32_t channel);
  void take(std::vector<Arrival>* arrivals, std::vector<std::uint8_t>* edges);
  std::pair<std::size_t, std::size_t> waiting();
  std::uint32_t salt() const { return table_.salt(); }

  // Answers reports of the last take(). residuals : records; spans : begin and end of those of each head, in
  // bytes. name : goes to the end of every reply that has room for it. Returns how many were sent.
  std::size_t answer(const std::vector<ReplyHead>& heads, const std::vector<std::uint32_t>& spans,
                     const std::uint8_t* residuals, std::size_t residual_bytes, const std::string& name);

  // Readable when there is something new: a first report, at most each 10 ms after it, and the last that is
  // missing.
  int event_fd() const { return event_fd_; }

  IntakeCounts counts();

 private:
  struct Buffers;

  void run();
  void close_sockets();
  bool drain(int socket, Buffers& buffers);
  void signal(std::int64_t now_ns);

  std::vector<int> sockets_;
  int event_fd_ = -1, stop_fd_ = -1;
  std::thread thread_;

  std::mutex mutex_;  // for all that follows
  ChannelTable table_;
  std::int64_t signalled_ns_ = 0;
  bool complete_ = false;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CLOCKSYNC_REPORT_INTAKE_H_
