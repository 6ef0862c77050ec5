// How long a connection takes back to its lanes after a fault, and how many dials that costs: virtual time, the
// plugin's own connections and handshakes at both ends, on NICs that a script cuts.
//
// Usage: plugin_lane_return LANES SPARES FAULT RAILS OUTAGE_MS HEALS CONNECTIONS
//   LANES      verbs or tcp
//   SPARES     1: TCP lanes of last resort over the same NICs
//   FAULT      rdma: queue pairs pass nothing, hellos do (they go by TCP), as where RoCE alone is dropped; rdma-but-one: the
//              same, and those of the first connection stay dead, which is left out of what is printed; all: nothing
//              passes, nor is it refused
//   RAILS      which of two: 1 the first, 2 both
//   OUTAGE_MS  how long; each further run lasts 73 ms longer
//   HEALS      runs
//   CONNECTIONS between the two hosts, each with two lanes a rail
//        plugin_lane_return connect HEAL_MS|down
//   Both rails are silent for two seconds, from when the connection is begun; then the second passes everything, and the
//   first, which NCCL has chosen, HEAL_MS after a lane is up, or its link is down. Prints `ready_ms`, how long after that
//   lane connect() gives the connection to NCCL, and `primary`, whether it has the lane that NCCL has chosen then.
// Prints one JSON object. Of the first form, of all runs the worst: `first_ms`, from the heal until each connection has a
// lane over a rail that was dead and needs no spare lane; `all_ms`, until all lanes may carry; `dials_per_s` of queue
// pairs over dead rails, of all connections together and after the first second; `gap_ms`, the longest time without a
// message since the heal.
#include <errno.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/recv_connection.h"
#include "core/send_connection.h"
#include "idle_transport.h"
#include "process/handshakes.h"
#include "test_runtime.h"
#include "wire_lane.h"

using namespace fabricpulse;

namespace {

constexpr uint64_t kMs = 1'000'000, kSynAgainNs = 1'000 * kMs;  // as Linux
constexpr uint32_t kRails = 2, kBytes = 64 * 1024;
constexpr uint64_t kToken = 11;

struct Fabric {
  bool silent[kRails] = {};     // nothing passes
  bool rdma_dead[kRails] = {};  // queue pairs pass nothing
  bool verbs = false, one_stays_dead = false;
  uint64_t dials = 0;  // over rails on which queue pairs pass nothing
};

// Dials arrive at the other host at once, or, on a silent rail, when the kernel sends their SYN again.
class FakeTransport final : public IdleTransport {
 public:
  explicit FakeTransport(Fabric* fabric) : fabric_(fabric) {}
  void join(Handshakes* own, Handshakes* peer) { own_ = own, peer_ = peer; }

  fp_lane_transport kind() const override { return fabric_->verbs ? FP_LANE_VERBS : FP_LANE_TCP; }
  void dial(const NicInfo&, const DialRequest& request, uint64_t now) override {
    fabric_->dials += fabric_->rdma_dead[request.nic];
    dials_.push_back({request, now});
  }
  bool dialling() const override { return !dials_.empty(); }
  void tick(uint64_t now) override {
    for (size_t i = 0; i < dials_.size();) {
      Dial& dial = dials_[i];
      const bool arrives = now >= dial.syn_ns && !fabric_->silent[dial.request.nic];
      if (now >= dial.syn_ns) dial.syn_ns += kSynAgainNs;
      if (!arrives && now < dial.request.connect_deadline_ns) {
        ++i;
        continue;
      }
      const DialRequest request = dial.request;
      dials_.erase(dials_.begin() + static_cast<ptrdiff_t>(i));
      if (arrives) {
        meet(request, now);
      } else {
        own_->dial_ended(request.id, ETIMEDOUT, nullptr, nullptr, now);
      }
    }
  }

 private:
  struct Dial {
    DialRequest request;
    uint64_t syn_ns;
  };
  struct Pending final : PendingLane {
    std::unique_ptr<LaneTransport> reply(const HelloReply& said) override {
      answered = true;
      answer = said;
      if (said.status != HelloStatus::kOk || wire == nullptr) return nullptr;
      return std::make_unique<WireLane>(wire, 1, tcp);
    }
    bool scarce() const override { return false; }
    std::shared_ptr<Wire> wire;
    bool tcp = false, answered = false;
    HelloReply answer;
  };

  void meet(const DialRequest& request, uint64_t now) {
    Pending pending;
    if (request.hello.kind == HelloKind::kLane) pending.wire = std::make_shared<Wire>();
    pending.tcp = !fabric_->verbs || (request.hello.flags & kHelloSpare);
    if (pending.wire) pending.wire->dead = (pending.tcp ? fabric_->silent : fabric_->rdma_dead) + request.nic;
    static constexpr bool kDead = true;
    if (!pending.tcp && fabric_->one_stays_dead && request.hello.connection == 1) pending.wire->dead = &kDead;
    own_->dial_connected(request.id);
    peer_->hello_received(request.hello, request.nic, &pending, now);
    std::unique_ptr<LaneTransport> lane;
    if (pending.wire && pending.answer.status == HelloStatus::kOk)
      lane = std::make_unique<WireLane>(pending.wire, 0, pending.tcp);
    own_->dial_ended(request.id, 0, &pending.answer, std::move(lane), now);
  }

  Fabric* const fabric_;
  Handshakes *own_ = nullptr, *peer_ = nullptr;
  std::vector<Dial> dials_;
};

class Host final : public SteppedRuntime {
 public:
  Host(uint8_t number, Fabric* fabric, bool spares) : transport(fabric) {
    identity.id[0] = number;
    if (spares) config_.last_resort = "rail*";
    for (uint32_t rail = 0; rail < kRails; ++rail) {
      NicInfo nic;
      nic.name = "rail" + std::to_string(rail);
      nic.address[10] = nic.address[11] = 0xff;
      nic.address[14] = number;
      nic.address[15] = static_cast<uint8_t>(rail + 1);
      if (spares) nic.spare_use = SpareUse::kAlso;
      nics.add(nic, true);
    }
    handshakes.start(&transport, &port);
  }
  SpareUse nic_spare_use(uint32_t nic) const override { return nics.at(nic).spare_use; }
  fp_lane_transport lane_kind(bool spare) const override { return spare ? FP_LANE_TCP : transport.kind(); }
  PathTable::Path* path(uint32_t nic, const uint8_t* address, uint64_t now) override {
    return paths.at(nic, address, now);
  }
  bool nic_up(uint32_t nic) const override { return !nic_down[nic]; }
  bool nic_down[kRails] = {};
  // What the service thread does.
  void serve(uint64_t now) {
    now_ns = now;
    transport.tick(now);
    if (now % (10 * kMs) != 0) return;
    for (const auto& connection : connections.all()) {
      {
        ConnectionLock locked(connection.get());
        connection->tick(now, 10 * kMs);
      }
      handshakes.start_dials(connection, now);
      handshakes.announce_nics(connection, now);
      handshakes.check_peer(connection, now);
    }
    transport.tick(now);
  }

  ProcessIdentity identity;
  const std::atomic<uint16_t> port{1};
  PathTable paths;
  NicTable nics;
  ConnectionTable connections;
  FakeTransport transport;
  Handshakes handshakes{this, &identity, &nics, &connections};
};

// A connection, of which both ends always want to move a message.
struct Flow {
  std::shared_ptr<SendConnection> sender;
  std::shared_ptr<RecvConnection> receiver;
  ReceiveMessage* receive = nullptr;
  SendMessage* send = nullptr;
  uint64_t moved = 0, last_ns = 0;

  // Lanes over these rails that may carry; spare ones aside.
  long carrying(uint32_t rails) const {
    return std::count_if(sender->lanes().begin(), sender->lanes().end(), [&](const Lane& lane) {
      return !lane.spare && lane.nic < rails && lane.up && lane.transport->proven();
    });
  }
};

class Run {
 public:
  Run(bool verbs, bool spares, uint64_t connections)
      : here_(1, &fabric_, spares), there_(2, &fabric_, spares), buffer_(kBytes), flows_(connections) {
    fabric_.verbs = verbs;
    here_.transport.join(&here_.handshakes, &there_.handshakes);
    there_.transport.join(&there_.handshakes, &here_.handshakes);
    listener_->token[0] = kToken;
    there_.connections.add_listener(listener_);
    WireNic nics[kMaxNics];
    uint32_t count = 0;
    there_.nics.fill(nics, &count);
    PeerRoute route;
    route.port = 1;
    route.token[0] = kToken;
    route.nics.assign(nics, nics + count);
    const std::vector<NicPair> lanes{{0, 0}, {1, 1}, {0, 0}, {1, 1}};
    for (size_t i = 0; i < flows_.size(); ++i) {
      flows_[i].sender = std::make_shared<SendConnection>(&here_, i + 1, 0, 1, lanes);
      flows_[i].sender->nics_changed(kRails, count);
      here_.connections.add(flows_[i].sender, route);
    }
  }

  // Steps until the condition holds for all connections; returns how many milliseconds that took.
  template <typename Condition>
  uint64_t until(Condition&& condition) {
    for (uint64_t ms = 0; !std::all_of(flows_.begin(), flows_.end(), condition); ++ms) {
      if (ms > 600'000) fprintf(stderr, "nothing moves\n"), exit(1);
      step();
    }
    return (here_.now_ns - cut_ns_) / kMs;
  }
  void wait(uint64_t ms) {
    for (; ms > 0; --ms) step();
  }
  void keep_one_dead() { fabric_.one_stays_dead = true; }
  bool stays_dead(const Flow& flow) const { return fabric_.one_stays_dead && flow.sender->id() == 1; }
  void cut(uint32_t rails, bool all, bool dead) {
    for (uint32_t rail = 0; rail < rails; ++rail) {
      fabric_.rdma_dead[rail] = dead;
      if (all) fabric_.silent[rail] = dead;
    }
    gap_ns_ = 0;
    cut_ns_ = here_.now_ns;
    for (Flow& flow : flows_) flow.last_ns = here_.now_ns;
  }
  void take_down(uint32_t rail) { here_.nic_down[rail] = true; }
  void silence(uint32_t rail, bool silent) { fabric_.silent[rail] = silent; }
  const SendConnection& sender() const { return *flows_[0].sender; }
  bool primary_up() const { return flows_[0].sender->lanes()[0].up; }
  uint64_t now() const { return here_.now_ns; }
  uint64_t dials() const { return fabric_.dials; }
  uint64_t gap_ms() const { return gap_ns_ / kMs; }

 private:
  void step() {
    const uint64_t now = here_.now_ns + kMs;
    here_.serve(now);
    there_.serve(now);
    if (auto accepted = there_.connections.accept(listener_.get()))
      flows_[accepted->id() - 1].receiver = std::move(accepted);
    for (Flow& flow : flows_)
      if (flow.receiver) move(&flow, now);
  }
  void move(Flow* flow, uint64_t now) {
    uint32_t size = 0;
    bool truncated = false;
    if (flow->receive == nullptr)
      flow->receive = flow->receiver->receive(buffer_.data(), kBytes, nullptr, now);
    if (flow->send == nullptr) flow->send = flow->sender->send(buffer_.data(), kBytes, 0, nullptr, now);
    if (flow->receive != nullptr && flow->receiver->test(flow->receive, &size, &truncated, now)) {
      flow->receive = nullptr;
      ++flow->moved;
      gap_ns_ = std::max(gap_ns_, now - flow->last_ns);
      flow->last_ns = now;
    }
    if (flow->send != nullptr && flow->sender->test(flow->send, &size, now)) flow->send = nullptr;
    if (flow->sender->lost() || flow->receiver->lost())
      fprintf(stderr, "lost: %s %s\n", here_.warned.c_str(), there_.warned.c_str()), exit(1);
  }

  Fabric fabric_;
  Host here_, there_;
  std::shared_ptr<Listener> listener_ = std::make_shared<Listener>();
  std::vector<uint8_t> buffer_;
  std::vector<Flow> flows_;
  uint64_t cut_ns_ = 0, gap_ns_ = 0;
};

int connects(bool down, uint64_t heal_ms) {
  Run run(false, false, 1);
  if (down) run.take_down(0);
  for (uint32_t rail : {0, 1}) run.silence(rail, true);
  run.wait(2000);
  run.silence(1, false);
  while (run.sender().lanes_up() == 0) run.wait(1);
  uint64_t ms = 0;
  for (; !run.sender().ready(run.now()) && ms < 10'000; ++ms) {
    if (ms == heal_ms) run.silence(0, false);
    run.wait(1);
  }
  printf("{\"ready_ms\": %llu, \"primary\": %d}\n", static_cast<unsigned long long>(ms), run.primary_up());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "connect") == 0)
    return connects(strcmp(argv[2], "down") == 0, strtoull(argv[2], nullptr, 10));
  if (argc != 8) return 2;
  const bool verbs = strcmp(argv[1], "verbs") == 0, spares = strcmp(argv[2], "1") == 0;
  const bool everything = strcmp(argv[3], "all") == 0;
  const auto rails = static_cast<uint32_t>(strtoul(argv[4], nullptr, 10));
  const uint64_t outage_ms = strtoull(argv[5], nullptr, 10), heals = strtoull(argv[6], nullptr, 10);
  if (rails == 0 || rails > kRails) return 2;
  uint64_t first = 0, all = 0, gap = 0;
  double dials_per_s = 0;
  for (uint64_t heal = 0; heal < heals; ++heal) {
    Run run(verbs, spares, strtoull(argv[7], nullptr, 10));
    run.until([&](const Flow& flow) { return flow.carrying(kRails) == 4 && flow.moved > 10; });
    run.wait(1000);
    run.cut(rails, everything, true);
    if (strcmp(argv[3], "rdma-but-one") == 0) run.keep_one_dead();
    run.wait(1000);
    const uint64_t before = run.dials(), span = outage_ms + heal * 73;
    run.wait(span);
    dials_per_s =
        std::max(dials_per_s, static_cast<double>(run.dials() - before) / (static_cast<double>(span) * 1e-3));
    if (spares && !everything && rails == kRails)
      run.until([](const Flow& flow) { return flow.sender->on_last_resort(); });
    run.cut(rails, everything, false);
    first = std::max(first, run.until([&](const Flow& flow) {
      return run.stays_dead(flow) || (flow.carrying(rails) > 0 && !flow.sender->on_last_resort());
    }));
    all = std::max(all, run.until([&](const Flow& flow) {
      return run.stays_dead(flow) || flow.carrying(rails) == 2 * rails;
    }));
    gap = std::max(gap, run.gap_ms());
  }
  printf("{\"first_ms\": %llu, \"all_ms\": %llu, \"dials_per_s\": %.2f, \"gap_ms\": %llu}\n",
         static_cast<unsigned long long>(first), static_cast<unsigned long long>(all), dials_per_s,
         static_cast<unsigned long long>(gap));
  return 0;
}
