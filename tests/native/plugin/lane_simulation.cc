// Two ranks of a ring all-reduce over connections whose lanes are streams on simulated links (simulated_streams.h), in
// virtual time. The core is the plugin's own.
//
// Usage: plugin_lane_simulation KEY=VALUE...; prints one JSON object.
//   nics mbit queue_ms   of each host: NICs, their speed, what waits at most before packets are dropped
//   bytes slice channels of the all-reduce
//   fault                none, carrier, silent, rx, tx (of host 1's NIC 0, packets that it would get, or send), slow (what
//                        host 1's NIC 0 gets comes at a 25th of the speed)
//   fault_ms lasts_ms    when, and for how long
//   until_ms             end of the simulation
//   late_us              most that a thread is late, evenly spread from 0
//   lose_fenced          1: no kFenced arrives
//   cut_nic              no lane of host 0 over this NIC is ever reached
//   seed
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "core/recv_connection.h"
#include "core/send_connection.h"
#include "simulated_streams.h"
#include "test_runtime.h"

using namespace fabricpulse;
using namespace fabricpulse::simulated;

namespace {

constexpr uint64_t kStepNs = 50'000;

std::map<std::string, std::string> options{
    {"nics", "2"},      {"mbit", "200"},   {"queue_ms", "20"},   {"bytes", "4194304"}, {"slice", "524288"},
    {"channels", "2"},  {"fault", "none"}, {"fault_ms", "500"},  {"lasts_ms", "400"},  {"until_ms", "2000"},
    {"late_us", "200"}, {"seed", "1"},     {"lose_fenced", "0"}, {"cut_nic", "99"}};
uint64_t option(const char* key) { return strtoull(options[key].c_str(), nullptr, 10); }
std::mt19937_64 random_source;

class Host final : public TestRuntime {
 public:
  explicit Host(uint32_t number) : number_(number) {}
  uint64_t now() const override { return now_ns; }
  bool nic_up(uint32_t nic) const override { return !fabric.carrier_lost[number_][nic]; }
  uint64_t nic_bytes_per_second(uint32_t) const override { return 1'250'000'000; }  // what a veth says
  PathTable::Path* path(uint32_t nic, const uint8_t* address, uint64_t now) override {
    return paths_.at(nic, address, now);
  }
  void wake() override { woken = true; }
  void warn(const std::string& text) override {
    fprintf(stderr, "host %u: %s\n", number_, text.c_str());
    ++warnings;
  }
  void info(const std::string& text) override {
    if (getenv("VERBOSE") != nullptr)
      fprintf(stderr, "%.1f host %u: %s\n", static_cast<double>(now_ns) * 1e-6, number_, text.c_str());
    ++given_up;
  }
  bool woken = false;
  uint64_t given_up = 0, warnings = 0;

 private:
  const uint32_t number_;
  PathTable paths_;
};

struct Channel {
  SendConnection* sender = nullptr;
  RecvConnection* receiver = nullptr;
  uint64_t recv_posted = 0, recv_done = 0, send_posted = 0, send_done = 0;
  std::deque<ReceiveMessage*> receives;
  std::deque<SendMessage*> sends;
};

struct Rank {
  std::vector<Channel> channels;
  uint64_t next_round_ns = 0, next_progress_ns = 0, next_tick_ns = 0, last_tick_ns = 0;
  uint64_t last_arrival_ns = 0;
  bool in_round = false;
};

struct Dial {
  uint64_t at = 0;
  SendConnection* sender = nullptr;
  RecvConnection* receiver = nullptr;
  uint32_t host = 0;
  DialPlan plan;
};

class Simulation {
 public:
  Simulation()
      : slice_(option("slice")),
        channels_(option("channels")),
        nics_count_(static_cast<uint32_t>(option("nics"))) {
    for (uint32_t n = 0; n < nics_count_; ++n) {
      snprintf(nics_[n].device, sizeof(nics_[n].device), "nic%u", n);
      nics_[n].address[15] = static_cast<uint8_t>(n + 1);
    }
    slices_ = std::max<uint64_t>(option("bytes") / channels_ / 2 / slice_, 1);
    buffer_.resize(slice_);
    for (Rank& rank : ranks_) rank.channels.resize(channels_);
    for (uint32_t host = 0; host < 2; ++host)
      for (uint64_t c = 0; c < channels_; ++c) connect(host, c);
  }

  void run() {
    const uint64_t begin = now_ns, fault_at = begin + option("fault_ms") * kMs,
                   heal_at = fault_at + option("lasts_ms") * kMs;
    const uint64_t end = begin + option("until_ms") * kMs;
    uint64_t during = 0, before = 0;
    bool broken = false, healed = false;
    for (; now_ns < end; now_ns += kStepNs) {
      if (!broken && now_ns >= fault_at) broken = true, fault(true), before = bytes_, longest_ns_ = 0;
      if (broken && !healed && now_ns >= heal_at) healed = true, fault(false), during = bytes_ - before;
      step();
    }
    if (broken && !healed) during = bytes_ - before;
    uint64_t failed = 0;
    for (const auto& connection : connections_)
      for (const Lane& lane : connection->lanes())
        failed += lane.record != nullptr ? lane.record->failovers : 0;
    uint64_t unreachable = 0;
    for (const auto& connection : connections_)
      for (const Lane& lane : connection->lanes())
        unreachable += lane.record != nullptr && lane.record->state == FP_LANE_CONNECTING &&
                       lane.record->last_reason == FP_REASON_UNREACHABLE;
    const double seconds = static_cast<double>(std::min(heal_at, end) - fault_at) * 1e-9;
    printf(
        "{\"during_ratio\": %.4f, \"before_ratio\": %.4f, \"longest_gap_ms\": %.2f, \"lanes_failed\": %llu, "
        "\"dropped\": %llu, \"unreachable\": %llu, \"warnings\": %llu}\n",
        static_cast<double>(during) / 2 / seconds / fabric.rate,
        static_cast<double>(before) / 2 / (static_cast<double>(fault_at - begin) * 1e-9) / fabric.rate,
        static_cast<double>(longest_ns_) * 1e-6, static_cast<unsigned long long>(failed),
        static_cast<unsigned long long>(fabric.dropped), static_cast<unsigned long long>(unreachable),
        static_cast<unsigned long long>(hosts_[0].warnings + hosts_[1].warnings));
  }

 private:
  uint64_t lateness() { return random_source() % (option("late_us") * 1000 + 1); }

  void connect(uint32_t host, uint64_t c) {
    const auto primary = static_cast<uint32_t>(c % nics_count_);
    std::vector<NicPair> lanes = plan_lanes({nics_count_, nics_count_, primary, primary, 8, 2},
                                            [](NicPair pair) { return pair.first == pair.second; });
    auto sender = std::make_unique<SendConnection>(&hosts_[host], c + 1, primary, 1, lanes);
    auto receiver = std::make_unique<RecvConnection>(&hosts_[1 - host], c + 1, primary, 1,
                                                     static_cast<uint32_t>(lanes.size()));
    sender->set_peer({}, nics_, nics_count_);
    receiver->set_peer({}, nics_, nics_count_);
    ranks_[host].channels[c].sender = sender.get();
    ranks_[1 - host].channels[c].receiver = receiver.get();
    pairs_.push_back({host, sender.get(), receiver.get()});
    connections_.push_back(std::move(sender));
    connections_.push_back(std::move(receiver));
  }

  void fault(bool on) {
    const std::string& kind = options["fault"];
    if (kind == "carrier") fabric.carrier_lost[1][0] = on;
    if (kind == "carrier" || kind == "silent" || kind == "rx") fabric.deaf[1][0] = on;
    if (kind == "carrier" || kind == "silent" || kind == "tx") fabric.mute[1][0] = on;
    if (kind == "slow") fabric.slow = on;
    hosts_[1].woken = true;
  }

  void step() {
    while (!fabric.under_way.empty() && fabric.under_way.top().at <= now_ns) {
      Packet packet = fabric.under_way.top();
      fabric.under_way.pop();
      if (!fabric.dead(packet.from_host, packet.nic)) packet.to->arrive(packet);
    }
    for (auto& socket : all_) socket->step();
    for (uint32_t host = 0; host < 2; ++host) {
      Rank& rank = ranks_[host];
      if (now_ns >= rank.next_progress_ns) {
        rank.next_progress_ns = now_ns + kStepNs + lateness();
        progress(&rank);
      }
      if (now_ns >= rank.next_tick_ns || hosts_[host].woken) tick(host);
    }
    for (size_t i = 0; i < dials_.size();) {
      if (now_ns < dials_[i].at) {
        ++i;
        continue;
      }
      Dial dial = dials_[i];
      dials_.erase(dials_.begin() + static_cast<ptrdiff_t>(i));
      finish(dial);
    }
  }

  void progress(Rank* rank) {
    if (!rank->in_round && now_ns < rank->next_round_ns) return;
    if (!rank->in_round) {
      rank->in_round = true;
      rank->last_arrival_ns = now_ns;
      for (Channel& c : rank->channels) c.recv_posted = c.recv_done = c.send_posted = c.send_done = 0;
    }
    bool finished = true;
    for (Channel& c : rank->channels) finished &= progress(rank, &c);
    if (!finished) return;
    rank->in_round = false;
    rank->next_round_ns = now_ns + 2 * kMs + lateness();  // it checks what has arrived
  }

  // As fabricpulse-ring of two ranks: what is sent in the second step was received in the first.
  bool progress(Rank* rank, Channel* c) {
    constexpr uint64_t kDepth = 8;
    const uint64_t total = 2 * slices_;
    while (c->recv_posted < total && c->recv_posted - c->recv_done < kDepth) {
      ReceiveMessage* message = c->receiver->receive(buffer_.data(), slice_, nullptr, now_ns);
      if (message == nullptr) break;
      c->receives.push_back(message);
      ++c->recv_posted;
    }
    uint32_t size = 0;
    bool truncated = false;
    while (!c->receives.empty() && c->receiver->test(c->receives.front(), &size, &truncated, now_ns)) {
      c->receives.pop_front();
      ++c->recv_done;
      bytes_ += size;
      longest_ns_ = std::max(longest_ns_, now_ns - rank->last_arrival_ns);
      rank->last_arrival_ns = now_ns;
    }
    while (c->send_posted < total && c->send_posted - c->send_done < kDepth &&
           (c->send_posted < slices_ || c->recv_done > c->send_posted - slices_)) {
      SendMessage* message =
          c->sender->send(buffer_.data(), static_cast<uint32_t>(slice_), 0, nullptr, now_ns);
      if (message == nullptr) break;
      c->sends.push_back(message);
      ++c->send_posted;
    }
    while (!c->sends.empty() && c->sender->test(c->sends.front(), &size, now_ns)) {
      c->sends.pop_front();
      ++c->send_done;
    }
    return c->recv_done == total && c->send_done == total;
  }

  void tick(uint32_t host) {
    Rank& rank = ranks_[host];
    hosts_[host].woken = false;
    bool suspect = false;
    for (Channel& c : rank.channels) {
      for (Connection* connection :
           {static_cast<Connection*>(c.sender), static_cast<Connection*>(c.receiver)}) {
        connection->tick(now_ns, now_ns - rank.last_tick_ns);
        suspect |= connection->suspects();
      }
      DialPlan plan;
      while (c.sender->want_dial(now_ns, &plan)) {
        const uint32_t nic = c.sender->lanes()[plan.lane].nic;
        const bool dead = fabric.dead(0, nic) || fabric.dead(1, nic);
        dials_.push_back(
            {now_ns + (dead ? 150 * kMs : 2 * kHopNs + lateness()), c.sender, peer_of(c.sender), host, plan});
      }
    }
    rank.last_tick_ns = now_ns;
    rank.next_tick_ns = now_ns + (suspect ? 4 : 10) * kMs + lateness();
  }

  RecvConnection* peer_of(const SendConnection* sender) const {
    for (const auto& pair : pairs_)
      if (pair.sender == sender) return pair.receiver;
    abort();
  }

  void finish(const Dial& dial) {
    const uint32_t nic = dial.sender->lanes()[dial.plan.lane].nic;
    if (fabric.dead(0, nic) || fabric.dead(1, nic) || (dial.host == 0 && nic == option("cut_nic"))) {
      dial.sender->dialled(dial.plan.lane, dial.plan.epoch, nullptr, nullptr, now_ns);
      return;
    }
    Hello hello;
    hello.connection = dial.sender->id();
    hello.lane = dial.plan.lane;
    hello.lanes = static_cast<uint32_t>(dial.sender->lanes().size());
    hello.epoch = dial.plan.epoch;
    hello.flags = dial.plan.flags;
    hello.device = nic;
    HelloReply reply;
    reply.status = dial.receiver->hello(hello, nic, &reply.held, now_ns);
    if (reply.status != HelloStatus::kOk) {
      dial.sender->dialled(dial.plan.lane, dial.plan.epoch, nullptr, &reply, now_ns);
      return;
    }
    auto here = std::make_shared<Socket>(dial.host, nic),
         there = std::make_shared<Socket>(1 - dial.host, nic);
    Socket::join(here, there);
    for (const auto& socket : {here, there})
      socket->round_trip(fabric.waits(0, nic) + fabric.waits(1, nic) + 2 * kHopNs);
    all_.push_back(here);
    all_.push_back(there);
    dial.receiver->attach(dial.plan.lane, dial.plan.epoch, std::make_unique<StreamLane>(there), now_ns);
    dial.sender->dialled(dial.plan.lane, dial.plan.epoch, std::make_unique<StreamLane>(here), &reply, now_ns);
  }

  struct Pair {
    uint32_t host;
    SendConnection* sender;
    RecvConnection* receiver;
  };
  const uint64_t slice_, channels_;
  const uint32_t nics_count_;
  uint64_t slices_ = 1;
  Host hosts_[2]{Host(0), Host(1)};
  WireNic nics_[kMaxNics];
  std::vector<uint8_t> buffer_;
  Rank ranks_[2];
  std::vector<std::shared_ptr<Socket>> all_;
  std::vector<std::unique_ptr<Connection>> connections_;
  std::vector<Pair> pairs_;
  std::vector<Dial> dials_;
  uint64_t bytes_ = 0, longest_ns_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos || options.count(word.substr(0, equals)) == 0) return 2;
    options[word.substr(0, equals)] = word.substr(equals + 1);
  }
  random_source.seed(option("seed"));
  fabric.rate = static_cast<double>(option("mbit")) * 125e3;
  fabric.queue_ns = option("queue_ms") * kMs;
  lose_fenced = option("lose_fenced") != 0;
  Simulation().run();
  return 0;
}
