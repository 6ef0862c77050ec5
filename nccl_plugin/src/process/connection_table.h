// The connections of this process, where their peers listen, and who waits for one to be accepted. Any
// thread.
#ifndef FABRICPULSE_PROCESS_CONNECTION_TABLE_H_
#define FABRICPULSE_PROCESS_CONNECTION_TABLE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/recv_connection.h"
#include "core/send_connection.h"

namespace fabricpulse {

// What NCCL's listen() gives: peers that know the token connect.
struct Listener {
  uint64_t token[2] = {};
  uint32_t device = 0;
  uint64_t communicator = 0;
  std::deque<std::shared_ptr<RecvConnection>> waiting;  // under the table's lock
};

// Where the peer's process of a connection listens.
struct PeerRoute {
  uint16_t port = 0;
  uint64_t token[2] = {};
  std::vector<WireNic> nics;
};

class ConnectionTable {
 public:
  std::vector<std::shared_ptr<Connection>> all() const;  // ascending by id
  // nullptr: not open here.
  std::shared_ptr<Connection> find(uint64_t id, Direction direction) const;
  void add(const std::shared_ptr<Connection>& connection, PeerRoute route);
  void remove(const Connection& connection);
  void clear();

  // Remembers for a while what a receiver held when it closed in good order. Its BYE may be lost with the
  // lanes; the sender dials again and learns it.
  void remember_closed(const Connection& connection, const HeldState& held, uint64_t now);
  bool find_closed(const Hello& hello, HeldState* held, uint64_t now) const;

  bool find_route(const Connection& connection, PeerRoute* route) const;
  // The peer's NICs as just reported. Their numbers are the peer's own: a longer list replaces a shorter
  // one that it continues.
  void refresh_route(const Connection& connection, const WireNic* nics, uint32_t count);

  void add_listener(const std::shared_ptr<Listener>& listener);
  // Returns those that were waiting for its accept().
  std::deque<std::shared_ptr<RecvConnection>> remove_listener(const std::shared_ptr<Listener>& listener);
  // The first connection that waits at a listener and is ready to be given to NCCL; nullptr: none.
  std::shared_ptr<RecvConnection> accept(Listener* listener);
  // The receiving end that a hello is for, made by `make` if its listener is here; nullptr: it knows no token
  // of ours.
  std::shared_ptr<RecvConnection> receiver_for(
      const Hello& hello, const std::function<std::shared_ptr<RecvConnection>(const Listener&)>& make);

 private:
  // A process may be connected to itself (several ranks in it), so that both ends of a connection are here.
  using Key = std::pair<uint64_t, Direction>;
  static Key key(const Connection& connection) { return {connection.id(), connection.direction()}; }

  mutable std::mutex lock_;  // taken before the lock of a connection, never after
  std::map<Key, std::shared_ptr<Connection>> connections_;
  std::map<Key, PeerRoute> routes_;
  std::vector<std::weak_ptr<Listener>> listeners_;
  struct Closed {
    uint64_t connection = 0;
    uint64_t token[2] = {};
    HeldState held;
    uint64_t at_ns = 0;
  };
  std::deque<Closed> closed_;  // oldest first
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_CONNECTION_TABLE_H_
