// The control socket (docs/control-protocol.md). Runs in the keeper thread.
#ifndef FABRICPULSE_CONTROL_SERVER_H_
#define FABRICPULSE_CONTROL_SERVER_H_

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "control/json.h"

namespace fabricpulse {

class Connection;
class Engine;

class ControlServer {
 public:
  explicit ControlServer(Engine* engine) : engine_(engine) {}
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Without a socket the job runs on; `complaint` says why.
  void open(std::string* complaint);
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  // Readable: id 0 is the listening socket, others are clients as given to `watch`.
  void serve(uint64_t id, const std::function<void(int fd, uint64_t id)>& watch);
  // Answers one message. `may_change`: the client's credentials allow changes. Public for the fuzzer.
  std::string answer(const char* text, size_t size, bool may_look, bool may_change);

 private:
  struct Client {
    int fd = -1;
    bool may_look = false, may_change = false;
  };
  struct Done {
    std::string op_id;
    bool applied = false;
    uint64_t generation = 0;
    std::string changed;  // JSON array
    std::string error;    // JSON object
    uint64_t at_ns = 0;
  };
  struct Failure {
    const char* code;
    std::string message;
  };

  void accept_client(const std::function<void(int fd, uint64_t id)>& watch);
  void drop(uint64_t id);
  std::string hello();
  std::string status(bool with_connections);
  std::string status_of(const std::string& op_id);
  std::string events(const JsonObject& request);
  std::string change(const std::string& op, const JsonObject& request);
  bool change_nic(const JsonObject& request, bool avoid, std::string* changed, Failure* failure);
  bool change_lane(const std::string& op, const JsonObject& request, std::string* changed, Failure* failure);
  static std::string error(const std::string& op_id, const Failure& failure);
  static std::string done_text(const Done& done, const char* result);

  Engine* engine_;
  int fd_ = -1;
  std::string path_;
  gid_t group_ = static_cast<gid_t>(-1);
  std::map<uint64_t, Client> clients_;
  uint64_t next_client_ = 1;
  std::deque<Done> done_;                        // newest last
  std::map<std::string, uint64_t> generations_;  // newest accepted, by target
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CONTROL_SERVER_H_
