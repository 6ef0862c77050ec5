// Connections that carry nothing and stay: the end of one shows that its peer's process has ended.
//
// When a process is killed its kernel ends each of its sockets, in order if all that had arrived was read, else with a
// reset, which is also what a firewall sends, or a plugin that gives up a lane. Lanes of a busy process, or of one that
// was stopped before, are all reset. Where nothing ever arrives the end is in order, and nothing else ends such a
// connection so: not a fault of the path, as nothing is sent that could fail, nor a live plugin, which resets it.
#ifndef FABRICPULSE_TRANSPORT_TCP_PROCESS_WATCHES_H_
#define FABRICPULSE_TRANSPORT_TCP_PROCESS_WATCHES_H_

#include <array>
#include <cstdint>
#include <map>

#include "core/transport.h"

namespace fabricpulse {

// Service thread.
class ProcessWatches {
 public:
  using Process = std::array<uint64_t, 2>;
  enum class End : uint8_t { kNone, kInOrder, kOtherwise };
  static constexpr size_t kMost = 1024;  // that peers have made

  // kind : bits of the ids with which the poller hands sockets back.
  ProcessWatches(Poller* poller, uint64_t kind) : poller_(poller), kind_(kind) {}
  ~ProcessWatches();
  ProcessWatches(const ProcessWatches&) = delete;
  ProcessWatches& operator=(const ProcessWatches&) = delete;

  // Takes over a connected, non-blocking socket that is owned. mine : this end has made the connection. Of one process
  // each end has one, the newest.
  void add(int fd, const Process& process, bool mine);
  bool room() const { return theirs_.size() < kMost; }
  bool has_mine(const Process& process) const { return mine_.count(process) > 0; }
  void drop_mine(const Process& process);
  // The socket of that id can be read: what it shows of `process`.
  End serve(uint64_t id, Process* process);

 private:
  struct Watch {
    int fd = -1;
    uint64_t id = 0;
  };
  struct Place {
    Process process;
    bool mine;
  };
  void forget(std::map<Process, Watch>* watches, const Process& process);

  Poller* const poller_;
  const uint64_t kind_;
  uint64_t next_id_ = 1;
  std::map<Process, Watch> mine_, theirs_;
  std::map<uint64_t, Place> places_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_TCP_PROCESS_WATCHES_H_
