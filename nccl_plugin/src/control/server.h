// The control socket (docs/control-protocol.md): its clients, in a thread of its own.
//
// A thread of its own because an answer must not wait for the service thread's work, nor the service thread's
// timers for a client. Clients are few, are served in turn, and are dropped when idle. What they cost is
// bounded for all of them together, in processor time of this thread: so many are accepted a second, including their
// first message, and so many further messages are answered a second, by what the process uses itself. A message that
// is not answered yet waits in its socket. So a client that asks without pause delays another's next message by one of
// its own, and a new client's first one, as the commands of `fabricpulse plugin ctl` and of the remediation agent are,
// not at all.
#ifndef FABRICPULSE_CONTROL_SERVER_H_
#define FABRICPULSE_CONTROL_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "control/requests.h"
#include "control/token_bucket.h"

namespace fabricpulse {

class ControlServer {
 public:
  explicit ControlServer(ControlledPlugin* engine);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Without a socket the job runs on; `complaint` has the reason.
  void open(std::string* complaint);
  const std::string& path() const { return path_; }

 private:
  struct Client {
    int fd = -1;
    bool may_read = false, may_change = false;
    bool known = false;   // has sent a message
    bool proven = false;  // has asked something that makes sense
    uint32_t invalid_requests = 0;
    uint64_t received_ns = 0;
  };

  void run();
  void accept_client(uint64_t now);
  void make_room();
  void drop(uint64_t id);
  void drop_idle(uint64_t now);
  void serve_new(uint64_t now);
  void serve_known(uint64_t now);
  void serve(uint64_t id, uint64_t now);
  void pay(double tokens);
  static int watch(int set, int fd, uint64_t id);

  ControlledPlugin* const engine_;
  ControlRequests requests_;
  // Sets for epoll: clients without a request so far, and the others.
  int fd_ = -1, new_ = -1, known_ = -1, stop_ = -1;
  std::string path_;
  gid_t group_ = static_cast<gid_t>(-1);
  std::map<uint64_t, Client> clients_;
  uint64_t next_client_ = 1;
  std::vector<char> buffer_;
  CostShare accept_share_, answer_share_;
  TokenBucket accepts_;                         // clients that may be let in, each with one message
  TokenBucket answers_;                         // further messages that may be answered
  uint32_t new_served_ = 0, known_served_ = 0;  // in this pass of the loop: who pays for it
  std::thread thread_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_SERVER_H_
