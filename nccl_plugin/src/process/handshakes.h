// How lanes come to be: the hello that a sender's process says on a fresh socket, and the answer to it.
//
// Dials go out for the lanes that senders want, and as probes of a receiver that has lost all its lanes and
// wants to know whether its peer still lives, or has another NIC to offer. service thread only.
#ifndef FABRICPULSE_PROCESS_HANDSHAKES_H_
#define FABRICPULSE_PROCESS_HANDSHAKES_H_

#include <cstdint>
#include <map>
#include <memory>

#include "core/recv_connection.h"
#include "core/send_connection.h"

namespace fabricpulse {

class PluginEngine;

class Handshakes {
 public:
  explicit Handshakes(PluginEngine* engine);
  ~Handshakes();
  Handshakes(const Handshakes&) = delete;
  Handshakes& operator=(const Handshakes&) = delete;

  // The listening socket of a NIC is readable.
  void accept_peers(uint32_t nic, uint64_t now);
  // The socket of handshake `id` is ready.
  void serve_incoming(uint64_t id, uint64_t now);
  void serve_dial(uint64_t id, uint64_t now);
  // Dials the lanes that the connection wants now.
  void start_dials(const std::shared_ptr<Connection>& connection, uint64_t now);
  // Tells the sender of a connection which NICs have come here since it heard of them.
  void announce_nics(const std::shared_ptr<Connection>& connection, uint64_t now);
  // Without any lane: is the peer unreachable for now, or gone?
  void check_peer(const std::shared_ptr<Connection>& connection, uint64_t now);
  void drop_late(uint64_t now);
  bool dialling() const;

 private:
  struct Dial;      // outgoing
  struct Incoming;  // of a peer

  void answer(Incoming* incoming, uint64_t now);
  void start_probe(const std::shared_ptr<RecvConnection>& receiver, uint64_t now);
  void end_dial(uint64_t id, int error, uint64_t now);
  int dial_socket(uint32_t nic, const uint8_t address[16], uint16_t port, uint16_t source_port, int* error);

  PluginEngine* const engine_;
  std::map<uint64_t, std::unique_ptr<Dial>> dials_;
  std::map<uint64_t, std::unique_ptr<Incoming>> incoming_;
  uint64_t next_id_ = 1;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_PROCESS_HANDSHAKES_H_
