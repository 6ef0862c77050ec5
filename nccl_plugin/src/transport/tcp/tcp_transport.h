// Lanes over TCP: a listening socket on each NIC, hellos and their answers on fresh sockets.
#ifndef FABRICPULSE_TRANSPORT_TCP_TCP_TRANSPORT_H_
#define FABRICPULSE_TRANSPORT_TCP_TCP_TRANSPORT_H_

#include <array>
#include <atomic>
#include <map>

#include "core/transport.h"
#include "transport/tcp/process_watches.h"

namespace fabricpulse {

// What a lane that is more than a socket has made of itself before the peer has answered.
struct LaneSetup {
  virtual ~LaneSetup() = default;
};

class TcpTransport : public Transport {
 public:
  TcpTransport(const Config& config, Poller* poller, TransportEvents* events);
  ~TcpTransport() override;
  TcpTransport(const TcpTransport&) = delete;
  TcpTransport& operator=(const TcpTransport&) = delete;

  fp_lane_transport kind() const override { return FP_LANE_TCP; }
  int memory_kinds() const override { return kMemoryHost; }
  std::vector<NicInfo> discover(const std::vector<std::string>& known) const override;
  bool wants(const std::string& name) const override;
  std::optional<bool> look_up(NicInfo* nic) const override;
  std::optional<bool> link_up(const std::string& name) const override;
  uint16_t listen(uint32_t nic, const NicInfo& info, uint16_t port) override;
  bool listens(uint32_t nic) const override { return listeners_[nic] >= 0; }
  void stop_listening(uint32_t nic) override;
  void dial(const NicInfo& from, const DialRequest& request, uint64_t now) override;
  bool dialling() const override { return !dials_.empty(); }
  bool watches(const uint64_t (&process)[2]) const override {
    return watches_.has_mine({process[0], process[1]});
  }
  void stop_watching(const uint64_t (&process)[2]) override { watches_.drop_mine({process[0], process[1]}); }
  void serve(uint64_t id, uint64_t now) override;
  void tick(uint64_t now) override;
  RegisteredMemory* register_memory(void* data, size_t size, int kind, std::string* why) override;
  void deregister_memory(RegisteredMemory* memory) override;

 protected:
  // ---- for lane types that use sockets only to meet ----
  // Once the peer's host has taken the connection, before a hello for a lane goes out, and before its answer does:
  // what the peer has to know. False: no lane can be made now (errno).
  virtual bool prepare(const NicAddress&, uint16_t, Hello*, std::unique_ptr<LaneSetup>*) { return true; }
  virtual bool answer(uint32_t, const Hello&, HelloReply*, std::unique_ptr<LaneSetup>*) { return true; }
  // What a socket becomes once its hello is answered with kOk; takes the socket over. `reply`: at the end that has
  // dialled. nullptr: the lane could not be made (errno).
  virtual std::unique_ptr<LaneTransport> make_lane(int fd, std::unique_ptr<LaneSetup> setup,
                                                   const HelloReply* reply, bool payload_crc);
  // Whether the wanted source port is the socket's: then it chooses the path.
  virtual bool binds_source_port() const { return true; }
  // Ends all dials without a callback; for destructors.
  void forget_dials();
  const Config& config() const { return config_; }
  Poller* poller() { return poller_; }

 private:
  struct Dial {
    int fd = -1;
    NicAddress from{};
    uint16_t source_port = 0;
    uint64_t deadline_ns = 0, answer_ns = 0;
    bool connected = false, hello_sent = false;
    bool payload_crc = false;
    Hello hello;
    size_t sent = 0;  // of the hello and its padding
    HelloReply reply;
    size_t received = 0;
    std::unique_ptr<LaneSetup> setup;
  };
  struct Incoming {
    int fd = -1;
    uint32_t nic = 0;
    NicAddress from{};
    uint64_t deadline_ns = 0;
    Hello hello;
    size_t received = 0;  // with the padding
  };
  class Answer;

  void accept_peers(uint32_t nic, uint64_t now);
  void drop_of_crowd();
  void serve_incoming(uint64_t id, uint64_t now);
  void serve_dial(uint64_t id, uint64_t now);
  bool connected(Dial* dial, uint64_t id, uint64_t now);
  bool say_hello(Dial* dial) const;
  bool payload_crc(const NicInfo& nic) const;
  void end_dial(uint64_t id, int error, uint64_t now);

  const Config& config_;
  Poller* const poller_;
  TransportEvents* const events_;
  std::array<std::atomic<int>, kMaxNics> listeners_;  // descriptors by NIC, -1: none
  std::array<std::string, kMaxNics> names_;
  std::map<uint64_t, std::unique_ptr<Dial>> dials_;
  std::map<uint64_t, std::unique_ptr<Incoming>> incoming_;
  ProcessWatches watches_;
  uint64_t next_incoming_ = 1;
  double crc_bytes_per_second_ = 0;
  uint32_t paused_ = 0;  // listeners, by NIC
  uint64_t paused_until_ns_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TRANSPORT_TCP_TCP_TRANSPORT_H_
