// Which lanes are dialled, what a hello is answered, and whether a peer without lanes has ended.
//
// Dials go out for the lanes that senders want, and as probes of a receiver that has lost all its lanes and
// wants to know whether its peer still lives, or has another NIC to offer. Service thread only. How a lane is
// dialled and accepted is the transport's part (core/transport.h).
#ifndef FABRICPULSE_PROCESS_HANDSHAKES_H_
#define FABRICPULSE_PROCESS_HANDSHAKES_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "core/transport.h"
#include "process/connection_table.h"
#include "process/nic_table.h"

namespace fabricpulse {

class Handshakes final : public TransportEvents {
 public:
  Handshakes(Runtime* runtime, const ProcessIdentity* identity, NicTable* nics, ConnectionTable* connections)
      : runtime_(runtime), identity_(*identity), nics_(nics), connections_(connections) {}
  Handshakes(const Handshakes&) = delete;
  Handshakes& operator=(const Handshakes&) = delete;

  // Before anything else. `port`: where this process listens; 0 until it does.
  void start(Transport* transport, const std::atomic<uint16_t>* port) {
    transport_ = transport;
    port_ = port;
  }

  void tick(uint64_t now);
  // Dials the lanes that the connection wants now.
  void start_dials(const std::shared_ptr<Connection>& connection, uint64_t now);
  // Reports to the sender of a connection which NICs have come here since the last report.
  void announce_nics(const std::shared_ptr<Connection>& connection, uint64_t now);
  // Keeps a connection to the peer's process that shows when it ends, as long as this is called for one to it.
  void watch_process(const std::shared_ptr<Connection>& connection, uint64_t now);
  // Without any lane: is the peer unreachable for now, or has it ended?
  void check_peer(const std::shared_ptr<Connection>& connection, uint64_t now);
  // The receiving end that a hello is for, see ConnectionTable.
  std::shared_ptr<RecvConnection> receiver_for(const Hello& hello);

  // ---- TransportEvents ----
  void hello_received(const Hello& hello, uint32_t nic, PendingLane* pending, uint64_t now) override;
  void dial_connected(uint64_t id) override;
  void dial_ended(uint64_t id, int error, const HelloReply* reply, std::unique_ptr<LaneTransport> lane,
                  uint64_t now) override;
  void process_ended(const uint64_t (&process)[2]) override;
  void descriptors_exhausted(uint64_t now) override;

 private:
  struct Dial {
    std::shared_ptr<Connection> connection;
    bool probe = false, watch = false;
    uint32_t lane = 0, epoch = 0;
    uint32_t nic = 0, remote_nic = 0;
    uint32_t announced = 0;  // how many of our NICs its hello named
  };

  struct Watch {
    bool dialling = false;
    uint64_t next_ns = 0, wanted_ns = 0;
  };
  // A hello of this process, with all its NICs.
  Hello make_hello(const Connection& connection) const;
  void extend_lanes(SendConnection* sender, const PeerRoute& route, uint64_t now);
  void learn_nics(const Hello& hello);
  uint32_t lanes_missing(Connection* connection, bool spares) const;
  void report_exhaustion(uint64_t now);
  void start_probe(const std::shared_ptr<RecvConnection>& receiver, uint64_t now);
  void probe_ended(const Dial& dial, int error, bool ended, uint64_t now);

  Runtime* const runtime_;
  const ProcessIdentity& identity_;
  NicTable* const nics_;
  ConnectionTable* const connections_;
  Transport* transport_ = nullptr;
  const std::atomic<uint16_t>* port_ = nullptr;
  std::map<uint64_t, Dial> dials_;
  std::map<std::pair<uint64_t, uint64_t>, Watch> watches_;  // by process
  uint64_t watches_reviewed_ns_ = 0;
  uint64_t next_id_ = 1;
  uint64_t exhausted_ns_ = 0, last_exhausted_ns_ = 0, exhausted_said_ns_ = 0;
  bool said_without_ = false;  // the last warning named connections without a lane
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_HANDSHAKES_H_
