// The control socket (docs/control-protocol.md): its clients, in a thread of its own.
//
// A thread of its own because an answer must not wait for the service thread's work, nor the service thread's
// timers for a client. Clients are few, are heard in turn, and leave when they say nothing; new ones are let
// in at a bounded rate, so that whoever opens sockets all day takes an eighth of a processor
// (13 % measured at that rate), not one.
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
  explicit ControlServer(PluginEngine* engine);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Without a socket the job runs on; `complaint` says why.
  void open(std::string* complaint);
  const std::string& path() const { return path_; }

 private:
  struct Client {
    int fd = -1;
    bool may_read = false, may_change = false;
    bool proven = false;  // has asked something that makes sense
    uint32_t invalid_requests = 0;
    uint64_t heard_ns = 0;
  };

  void run();
  void accept_client(uint64_t now);
  void make_room();
  void drop(uint64_t id);
  void drop_idle(uint64_t now);
  void serve(uint64_t id, uint64_t now);

  PluginEngine* const engine_;
  ControlRequests requests_;
  int fd_ = -1, epoll_ = -1, stop_ = -1;
  std::string path_;
  gid_t group_ = static_cast<gid_t>(-1);
  std::map<uint64_t, Client> clients_;
  uint64_t next_client_ = 1;
  std::vector<char> buffer_;
  TokenBucket tokens_;  // clients that may be let in
  std::thread thread_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_SERVER_H_
