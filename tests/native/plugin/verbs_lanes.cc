// Both ends of a connection over queue pairs of the stand-in (verbs_stand_in.h), under random faults: lanes that
// either end fails, paths that are cut and restored, packets that arrive late or twice, set-ups that go stale.
//
// Holds: every message arrives once, in order, with its bytes; no byte is written into a buffer after test() has
// said that its receive is done; the connection is never lost; no lane's end waits for the driver to destroy its queue
// pair; nothing of the library is left over at the end.
//
// Usage: plugin_verbs_lanes SEED MESSAGES FAULTS [MODE]...; prints what happened. Exit 1 with a line of what broke. Modes:
//   one-nic      all lanes share a NIC, the fabric is slow and messages are large
//   threads      queue pairs end on the reaper's own thread, another one registers memory all the time, and a third reads
//                the telemetry as the control socket does
//   abort        both ends' application takes its memory back after half of the messages, while requests are under way:
//                nothing reads or writes it from then on
//   last-resort  all paths of queue pairs are cut now and then, for long, while hellos still pass, and there is a TCP
//                lane over loopback: it carries what the queue pairs do not, and nothing any more once they are back
//   dead-rail    the queue pairs of one device pass nothing from the middle on, while hellos still do: its lanes come
//                back and fail again, and no chunk is put on them
//   late-nic     in the middle a second NIC comes, when receives have been named without it, and the first one passes
//                nothing any more
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/owned_fds.h"
#include "core/recv_connection.h"
#include "core/send_connection.h"
#include "test_runtime.h"
#include "transport/tcp/tcp_lane.h"
#include "transport/verbs/verbs_lane.h"
#include "verbs_message_stream.h"
#include "verbs_stand_in.h"

using namespace fabricpulse;

namespace {

constexpr uint32_t kTcpNic = 2;

struct Host final : SteppedRuntime {
  uint64_t bytes_per_second = 1'000'000'000;
  uint64_t nic_bytes_per_second(uint32_t) const override { return bytes_per_second; }
  SpareUse nic_spare_use(uint32_t nic) const override {
    return nic == kTcpNic ? SpareUse::kOnly : SpareUse::kNone;
  }
  fp_lane_transport lane_kind(bool spare) const override { return spare ? FP_LANE_TCP : FP_LANE_VERBS; }
};

// Both ends of a connection over loopback.
std::pair<int, int> tcp_pair() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* at = reinterpret_cast<sockaddr*>(&address);
  int listener = socket(AF_INET, SOCK_STREAM, 0), here = own_fd(socket(AF_INET, SOCK_STREAM, 0));
  if (bind(listener, at, size) != 0 || listen(listener, 1) != 0 || getsockname(listener, at, &size) != 0 ||
      connect(here, at, size) != 0)
    broken("no connection over loopback");
  int there = own_fd(accept(listener, nullptr, nullptr));
  close(listener);
  for (int fd : {here, there}) fcntl(fd, F_SETFL, O_NONBLOCK);
  return {here, there};
}

class Simulation {
 public:
  Simulation(uint32_t seed, uint64_t messages, uint64_t faults, const std::set<std::string>& modes)
      : random_(seed),
        one_nic_(modes.count("one-nic") > 0),
        threads_(modes.count("threads") > 0),
        abort_(modes.count("abort") > 0),
        last_resort_(modes.count("last-resort") > 0),
        dead_rail_(modes.count("dead-rail") > 0),
        late_nic_(modes.count("late-nic") > 0),
        faults_left_(faults),
        fabric_(seed + 1),
        library_(fabric_.library()) {
    if (seed % 2 == 1 && !one_nic_) host_.bytes_per_second = 1'000'000;  // messages of many chunks
    devices_.refresh();
    for (auto& device : devices_.all())
      if (!devices_.use(device.get())) broken("no protection domain");
    for (auto& nic : nic_devices_) nic = -1;
    nic_devices_[0] = 0;
    nic_devices_[1] = late_nic_ ? -1 : 1;
    std::vector<NicPair> lanes{{0, 0}, {1, 1}, {0, 0}, {1, 1}};
    if (one_nic_) lanes = {{0, 0}, {0, 0}};
    sender_ = std::make_unique<SendConnection>(&host_, 7, 0, 1, lanes);
    receiver_ = std::make_shared<RecvConnection>(&host_, 7, 0, 1, static_cast<uint32_t>(lanes.size()));
    sender_->set_peer({}, nics_, 3);
    receiver_->set_peer({}, nics_, 3);
    if (last_resort_) sender_->add_spares({{kTcpNic, kTcpNic}}, host_.now_ns);
    stream_ = std::make_unique<MessageStream>(&random_, &devices_, messages, one_nic_);
  }

  void run() {
    std::atomic<bool> over{false};
    std::thread registers, reads;
    if (threads_) {
      reads = std::thread([&] {
        while (!over) {
          read_telemetry(*sender_);
          read_telemetry(*receiver_);
          std::this_thread::yield();
        }
      });
      reaper_->start();
      registers = std::thread([&] {
        std::vector<uint8_t> own(65536);
        while (!over) {
          std::string why;
          VerbsMemory* memory = devices_.register_memory(own.data(), own.size(), &why);
          if (memory == nullptr) broken(why);
          devices_.deregister_memory(memory);
          std::this_thread::yield();
        }
      });
    }
    uint64_t idle = 0;
    while (!stream_->done()) {
      // Requests of both ends are under way; one that is done already is no error, whether or not it was tested.
      if (abort_ && stream_->past_middle() && sender_->requests() > 0 && receiver_->requests() > 0) {
        take_memory_back();
        break;
      }
      uint64_t before = stream_->moved();
      one_round();
      idle = stream_->moved() == before ? idle + 1 : 0;
      if (idle > 400'000) broken("nothing moves: " + std::to_string(stream_->received()) + " received");
      if (sender_->lost() || receiver_->lost()) broken("the connection is lost: " + host_.warned);
    }
    over = true;
    for (std::thread* thread : {&registers, &reads})
      if (thread->joinable()) thread->join();
    uint64_t chunks = 0, tcp_chunks = 0;
    for (const Lane& lane : sender_->lanes())
      if (lane.record != nullptr) (lane.spare ? tcp_chunks : chunks) += lane.record->sent_chunks;
    const uint64_t on_dead = on_rail_0() - on_dead_then_;
    sender_->close(host_.now_ns);
    receiver_->close(host_.now_ns);
    while (fabric_.step() && ++idle < 1000) {
    }
    stream_->check_returned();
    sender_.reset();
    receiver_.reset();
    reaper_->end_all();
    stream_->deregister();
    if (fabric_.pairs() != 0 || fabric_.regions() != 0) broken("queue pairs or memory are left over");
    printf(
        "{\"messages\": %llu, \"dials\": %llu, \"failed\": %llu, \"dropped\": %llu, "
        "\"chunks\": %llu, \"tcp_chunks\": %llu, \"outages\": %llu, \"relieved\": %llu, \"rejoined\": %llu, "
        "\"on_dead\": %llu}\n",
        static_cast<unsigned long long>(stream_->received()), static_cast<unsigned long long>(dials_),
        static_cast<unsigned long long>(failed_), static_cast<unsigned long long>(fabric_.dropped),
        static_cast<unsigned long long>(chunks), static_cast<unsigned long long>(tcp_chunks),
        static_cast<unsigned long long>(outages_), static_cast<unsigned long long>(relieved_),
        static_cast<unsigned long long>(rejoined_), static_cast<unsigned long long>(on_dead));
  }

 private:
  uint64_t any(uint64_t count) { return std::uniform_int_distribution<uint64_t>(0, count - 1)(random_); }

  // As an abort: what is under way is never done.
  void take_memory_back() {
    stream_->take_memory_back(sender_.get(), receiver_.get(), host_.now_ns);
    for (int i = 0; i < 2000; ++i) {
      host_.now_ns += 1'000'000;
      for (uint64_t n = any(40); n > 0; --n) fabric_.step();
      if (!sender_->closed()) sender_->tick(host_.now_ns, 1'000'000);
      if (!receiver_->closed()) receiver_->tick(host_.now_ns, 1'000'000);
    }
    if (!receiver_->broken(host_.now_ns) || !sender_->broken(host_.now_ns))
      broken("what can never be done is no error");
    stream_->check_taken_back();
  }

  void one_round() {
    host_.now_ns += one_nic_ ? 15'000'000 : 20'000 + any(200'000);
    uint64_t now = host_.now_ns;
    for (uint64_t n = any(40); n > 0; --n) fabric_.step();
    // Until a lane that has flapped is tried again TCP would carry thousands.
    const bool slow = play_ == Play::kRestored && sender_->on_last_resort() && any(100) != 0;
    stream_->step(sender_.get(), receiver_.get(), !slow, now);
    fabric_.busy = true;
    if (any(4) == 0) {
      sender_->tick(now, 2'000'000);
      receiver_->tick(now, 2'000'000);
      fabric_.busy = false;
      if (!threads_ && any(100) == 0)
        reaper_->tick();  // queue pairs that nobody waits for may live on for long
      dial(now);
    } else {
      sender_->drive(now);
      receiver_->drive(now);
    }
    fabric_.busy = false;
    if (faults_left_ > 0 && any(25) == 0) fault(now);
    if (dead_rail_) kill_rail();
    if (late_nic_ && nic_devices_[1] < 0) replace_nic();
    if (any(50) == 0 && now >= outage_until_ns_ && !rail_dead_)
      fabric_.cut(static_cast<uint32_t>(any(2)), false);
    stream_->check_returned();
    if (last_resort_) check_last_resort();
    if (last_resort_) play();
  }

  // Once the peer has answered on a queue pair the spare lane is left, and not before.
  void check_last_resort() {
    const Lane& spare = sender_->lanes().back();
    if (was_spare_ && !spare.up && spare.reason == FP_REASON_RELIEVED) ++relieved_;
    if (spare.up && spare.state != FP_LANE_LAST_RESORT) broken("a lane of last resort that does not say so");
    if (spare.record != nullptr && spare.record->transport != FP_LANE_TCP) broken("a spare lane is not TCP");
    constexpr const char* kSaid = "none of its lanes over queue pairs is up; TCP from nic";
    if (spare.up && !was_spare_ && host_.warned.find(kSaid) == std::string::npos)
      broken("the log does not say that TCP carries the connection: " + host_.warned);
    was_spare_ = spare.up;
    // The kernel's time is another than this: what it would put off acknowledging looks like a stall here.
    int on = 1;
    for (int fd : {sockets_.first, sockets_.second})
      if (spare.up) setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
  }

  // In the middle, and without other faults: an outage until TCP has carried messages, then none until it has been left
  // and queue pairs carry them again.
  enum class Play : uint8_t { kBefore, kOutage, kRestored, kOver };
  void play() {
    const Lane& spare = sender_->lanes().back();
    uint64_t by_tcp = spare.record != nullptr ? spare.record->sent_chunks : 0, all = 0;
    for (const Lane& lane : sender_->lanes())
      if (lane.record != nullptr) all += lane.record->sent_chunks;
    if (play_ == Play::kBefore && stream_->past_middle()) {
      play_ = Play::kOutage;
      faults_kept_ = std::exchange(faults_left_, 0);
      outage_until_ns_ = UINT64_MAX;
      for (uint32_t device = 0; device < 2; ++device) fabric_.cut(device, true);
      chunks_then_ = by_tcp;
    } else if (play_ == Play::kOutage && by_tcp > chunks_then_ + 20) {
      play_ = Play::kRestored;
      outage_until_ns_ = 0;
      for (uint32_t device = 0; device < 2; ++device) fabric_.cut(device, false);
      relieved_then_ = relieved_;
    } else if (play_ == Play::kRestored) {
      const bool left =
          relieved_ > relieved_then_ && !sender_->on_last_resort() && !receiver_->on_last_resort();
      if (!left) chunks_then_ = all - by_tcp;
      if (all - by_tcp > chunks_then_ + 20) {
        play_ = Play::kOver;
        faults_left_ = faults_kept_;
      }
    }
    if (play_ == Play::kOutage || play_ == Play::kRestored) stream_->go_on();
  }

  static void read_telemetry(Connection& connection) {
    fp_plugin_connection whole{};
    read_record(connection.record(), &whole);
    for (uint32_t lane = 0; lane < connection.lane_count(); ++lane) {
      fp_plugin_lane read{};
      if (const fp_plugin_lane* record = connection.lane_record(lane)) read_record(record, &read);
    }
  }

  // Chunks that lanes over device 0 were given.
  uint64_t on_rail_0() const {
    uint64_t sum = 0;
    for (const Lane& lane : sender_->lanes())
      if (lane.nic == 0 && lane.record != nullptr) sum += lane.record->sent_chunks;
    return sum;
  }

  // From the middle on device 0 passes nothing.
  void kill_rail() {
    if (!rail_dead_ && stream_->past_middle()) {
      rail_dead_ = true;
      fabric_.cut(1, false);
      fabric_.cut(0, true);
    }
    if (!rail_dead_) return;
    bool up = false, fencing = false;
    for (const Lane& lane : sender_->lanes()) {
      up |= lane.nic == 0 && lane.up;
      fencing |= lane.nic == 0 && lane.state == FP_LANE_FENCING;
    }
    if (!settled_ && !up && !fencing) settled_ = true, on_dead_then_ = on_rail_0();
    if (settled_ && up && !was_up_) ++rejoined_;
    was_up_ = up;
    if (rejoined_ < 3) stream_->go_on();
  }

  void replace_nic() {
    if (!stream_->past_middle() || receiver_->requests() == 0) return;
    nic_devices_[1] = 1;
    rail_dead_ = true;
    fabric_.cut(0, true);
  }

  void fault(uint64_t now) {
    --faults_left_;
    auto lane = static_cast<uint32_t>(any(last_resort_ ? 5 : 4));
    if (last_resort_ && (outages_ == 0 || any(6) == 0)) {  // all queue pairs are dead for up to 2 s
      ++outages_;
      outage_until_ns_ = now + any(2'000'000'000);
      for (uint32_t device = 0; device < 2; ++device) fabric_.cut(device, true);
      return;
    }
    if (lane >= receiver_->lanes().size()) return;  // no hello for it yet
    switch (any(4)) {
      case 0:
        if (sender_->lanes()[lane].up) ++failed_, sender_->fail_lane(lane, FP_REASON_STALL, now);
        break;
      case 1:
        if (receiver_->lanes()[lane].up) ++failed_, receiver_->fail_lane(lane, FP_REASON_STALL, now);
        break;
      default:
        fabric_.cut(static_cast<uint32_t>(any(2)), true);
        break;
    }
  }

  // What VerbsTransport and Handshakes do, without sockets.
  void dial(uint64_t now) {
    DialPlan plan;
    while (sender_->want_dial(now, &plan)) {
      ++dials_;
      uint32_t nic = sender_->lanes()[plan.lane].nic;
      if (nic == 1 && nic_devices_[1] < 0) {
        sender_->dialled(plan.lane, plan.epoch, nullptr, nullptr, now);
        continue;
      }
      if (plan.flags & kHelloSpare) {
        dial_spare(plan, now);
        continue;
      }
      VerbsPort port{devices_.all()[nic].get(), 1, 1};
      auto here = VerbsPair::make(&devices_, port, {}, VerbsPair::End::kSender, 5);
      auto there = VerbsPair::make(&devices_, port, {}, VerbsPair::End::kReceiver, 5);
      if (!here || !there || !there->connect(here->setup())) broken("no queue pair");
      const VerbsSetup peer = there->setup();
      Hello hello;
      hello.connection = 7;
      hello.lane = plan.lane;
      hello.lanes = 4;
      hello.epoch = plan.epoch;
      hello.flags = plan.flags;
      hello.device = nic;
      HelloReply reply;
      bool hello_lost = faults_left_ > 0 && any(8) == 0, reply_lost = faults_left_ > 0 && any(8) == 0;
      fabric_.busy = true;
      if (!hello_lost) reply.status = receiver_->hello(hello, nic, &reply.held, now);
      fabric_.busy = false;
      bool accepted = !hello_lost && reply.status == HelloStatus::kOk;
      if (accepted)
        receiver_->attach(plan.lane, plan.epoch,
                          make_verbs_lane(std::move(there), -1, nic, &nic_devices_, reaper_), now);
      if (hello_lost || reply_lost || !accepted) {
        sender_->dialled(plan.lane, plan.epoch, nullptr, hello_lost || reply_lost ? nullptr : &reply, now);
        continue;
      }
      if (!here->connect(peer)) broken("no connection");
      sender_->dialled(plan.lane, plan.epoch,
                       make_verbs_lane(std::move(here), -1, nic, &nic_devices_, reaper_), &reply, now);
    }
  }

  void dial_spare(const DialPlan& plan, uint64_t now) {
    Hello hello;
    hello.connection = 7;
    hello.lane = plan.lane;
    hello.lanes = 5;
    hello.epoch = plan.epoch;
    hello.flags = plan.flags;
    hello.device = kTcpNic;
    HelloReply reply;
    bool hello_lost = faults_left_ > 0 && any(8) == 0, reply_lost = faults_left_ > 0 && any(8) == 0;
    if (!hello_lost) reply.status = receiver_->hello(hello, kTcpNic, &reply.held, now);
    bool accepted = !hello_lost && reply.status == HelloStatus::kOk;
    std::unique_ptr<LaneTransport> here, there;
    if (accepted) {
      sockets_ = tcp_pair();
      here = make_tcp_lane(sockets_.first, false);
      receiver_->attach(plan.lane, plan.epoch, make_tcp_lane(sockets_.second, false), now);
    }
    bool answered = accepted && !reply_lost;
    sender_->dialled(plan.lane, plan.epoch, answered ? std::move(here) : nullptr,
                     hello_lost || reply_lost ? nullptr : &reply, now);
  }

  std::mt19937 random_;
  const bool one_nic_, threads_, abort_, last_resort_, dead_rail_, late_nic_;
  bool rail_dead_ = false, settled_ = false, was_up_ = false;
  uint64_t rejoined_ = 0, on_dead_then_ = 0;
  uint64_t outage_until_ns_ = 0, outages_ = 0, relieved_ = 0;
  uint64_t chunks_then_ = 0, relieved_then_ = 0, faults_kept_ = 0;
  Play play_ = Play::kBefore;
  bool was_spare_ = false;
  std::pair<int, int> sockets_{-1, -1};
  uint64_t faults_left_;
  stand_in::Fabric fabric_;
  VerbsLibrary library_;
  VerbsDevices devices_{&library_};
  std::shared_ptr<VerbsReaper> reaper_ = std::make_shared<VerbsReaper>();
  NicDevices nic_devices_;
  Host host_;
  WireNic nics_[3];
  std::unique_ptr<SendConnection> sender_;
  std::shared_ptr<RecvConnection> receiver_;
  std::unique_ptr<MessageStream> stream_;
  uint64_t dials_ = 0, failed_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::set<std::string> modes(argv + 4, argv + argc);
  for (const std::string& mode : modes)
    if (mode != "one-nic" && mode != "threads" && mode != "abort" && mode != "last-resort" &&
        mode != "dead-rail" && mode != "late-nic")
      return 2;
  Simulation(static_cast<uint32_t>(strtoul(argv[1], nullptr, 10)), strtoull(argv[2], nullptr, 10),
             strtoull(argv[3], nullptr, 10), modes)
      .run();
}
