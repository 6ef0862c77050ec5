// What messages over one queue pair cost, counted on the stand-in for libibverbs (verbs_stand_in.h): what each end posts,
// how often it rings the device, what it polls, and how many tests had to do more than poll. Requests come in the order of NCCL's proxy, eight under way, over a
// fabric without faults that has delivered everything before the next call.
//
// Usage: plugin_verbs_counts BYTES MESSAGES [fleet|one|rails]...; prints one JSON line, totals of each end. fleet : there
// is fleet time, so that chunks have stamps. one : one send under way, beside eight receives. rails : two lanes that share
// no NIC. idle : prints instead how many of so many tests of a receive, and then of a send, that nothing comes of were
// drives, and which pass after an arrival finds it. silent : prints instead whether the service thread is woken while all
// is carried, after how many microseconds of polling it is for what the fabric does not carry, and after how many more, in
// ticks of 4 ms, the lane is given up. abandoned : prints instead whether the service thread relies on who polls, and after
// how many milliseconds without polling such a lane is given up. ahead : prints instead, of eight messages given to the device at once, the bytes
// that their round trips waited behind as each lane tells it, and what the device has under way at the end.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/recv_connection.h"
#include "core/send_connection.h"
#include "test_runtime.h"
#include "transport/verbs/verbs_lane.h"
#include "verbs_stand_in.h"

using namespace fabricpulse;

namespace {

constexpr uint64_t kUnderWay = 8, kPassNs = 20'000;

struct Counts {
  uint64_t doorbells = 0, requests = 0, bytes = 0, completions = 0, receives = 0, drives = 0;
};
Counts counts[2];  // of the sender's device, of the receiver's
ib::ContextOps fabric_ops;

struct Host final : SteppedRuntime {
  bool fleet = false;
  void wake() override { woken = true; }
  bool woken = false;
  bool fleet_clock(int64_t* fleet_ns) const override {
    *fleet_ns = static_cast<int64_t>(now_ns);
    return fleet;
  }
};

// Both ends' queue pairs are of one stand-in: the device says which end's one is.
Counts& of(const ib::Context* context, const ib::Context* first) { return counts[context == first ? 0 : 1]; }
const ib::Context* sender_context = nullptr;

int counted_send(ib::QueuePair* pair, ib::SendRequest* first, ib::SendRequest** bad) {
  Counts& end = of(pair->context, sender_context);
  ++end.doorbells;
  for (const ib::SendRequest* request = first; request != nullptr; request = request->next) {
    ++end.requests;
    end.bytes += request->segment_count > 0 ? request->segments->length : 0;
  }
  return fabric_ops.post_send(pair, first, bad);
}
int counted_recv(ib::QueuePair* pair, ib::RecvRequest* first, ib::RecvRequest** bad) {
  ++of(pair->context, sender_context).receives;
  return fabric_ops.post_recv(pair, first, bad);
}
int counted_poll(ib::CompletionQueue* queue, int most, ib::WorkCompletion* out) {
  const int found = fabric_ops.poll_cq(queue, most, out);
  if (found > 0) of(queue->context, sender_context).completions += static_cast<uint64_t>(found);
  return found;
}

[[noreturn]] void broken(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

class Stream {
 public:
  Stream(size_t bytes, bool fleet, bool one, uint32_t rails)
      : bytes_(bytes), sends_under_way_(one ? 1 : kUnderWay) {
    host_.fleet = fleet;
    fabric_.holds_back = false;
    devices_.refresh();
    for (auto& device : devices_.all()) {
      if (!devices_.use(device.get())) broken("no protection domain");
      fabric_ops = device->context->ops;
      device->context->ops.post_send = counted_send;
      device->context->ops.post_recv = counted_recv;
      device->context->ops.poll_cq = counted_poll;
    }
    sender_context = devices_.all()[0]->context;
    for (auto& nic : sender_nics_) nic = -1;
    for (auto& nic : receiver_nics_) nic = -1;
    std::vector<NicPair> pairs;
    for (uint32_t rail = 0; rail < rails; ++rail) {
      sender_nics_[rail] = 0;
      receiver_nics_[rail] = 1;
      pairs.push_back({rail, rail});
    }
    sender_ = std::make_unique<SendConnection>(&host_, 7, 0, 1, pairs);
    receiver_ = std::make_shared<RecvConnection>(&host_, 7, 0, 1, rails);
    sender_->set_peer({}, nics_, rails);
    receiver_->set_peer({}, nics_, rails);
    for (uint32_t rail = 0; rail < rails; ++rail) connect(rails);
    out_.assign(bytes * kUnderWay, 0);
    in_.assign(bytes * kUnderWay, 0);
    std::string why;
    out_memory_ = devices_.register_memory(out_.data(), out_.size(), &why);
    in_memory_ = devices_.register_memory(in_.data(), in_.size(), &why);
    if (out_memory_ == nullptr || in_memory_ == nullptr) broken(why.c_str());
  }
  ~Stream() {
    sender_.reset();
    receiver_.reset();
    reaper_->end_all();
    devices_.deregister_memory(out_memory_);
    devices_.deregister_memory(in_memory_);
  }

  // All sends of a round before the device gets to work.
  void print_ahead() {
    for (int round = 0; round < 40; ++round) {
      for (uint64_t i = 0; i < kUnderWay; ++i) pass_receiver(UINT64_MAX);
      settle();
      sender_->drive(host_.now_ns += kPassNs);  // which receives there are
      const uint64_t until = sent_ + kUnderWay;
      while (sent_ < until) pass_sender(until);
      while (received_ < until || acknowledged_ < until) {
        settle();
        host_.now_ns += kPassNs;
        if (received_ < until) pass_receiver(posted_);
        receiver_->flush_ack(host_.now_ns);
        settle();
        pass_sender(until);
      }
    }
    for (const Lane& lane : sender_->lanes())
      printf("%llu ", static_cast<unsigned long long>(lane.transport->sample().ahead));
    printf("%llu\n", static_cast<unsigned long long>(devices_.all()[0]->under_way.load()));
  }

  // Both ends with one request under way and nothing to do.
  void print_idle(uint32_t passes) {
    settle();
    uint32_t size = 0;
    bool truncated = false;
    auto* in = receiver_->receive(in_.data(), bytes_, in_memory_, host_.now_ns);
    const auto receives = [&] {
      return !receiver_->waits(in) && (++drives_, receiver_->test(in, &size, &truncated, ++host_.now_ns));
    };
    const uint64_t receiving = idle(passes, receives);
    settle();
    auto* out = sender_->send(out_.data(), static_cast<uint32_t>(bytes_), 0, out_memory_, host_.now_ns);
    const auto sends = [&] {
      return !sender_->waits(out) && (++drives_, sender_->test(out, &size, ++host_.now_ns));
    };
    const uint64_t sending = idle(passes, sends);  // the fabric does nothing meanwhile
    settle();
    const uint64_t arrived = passes_until(receives);
    receiver_->flush_ack(host_.now_ns);
    settle();
    printf("%llu %llu %llu %llu\n", static_cast<unsigned long long>(receiving),
           static_cast<unsigned long long>(sending), static_cast<unsigned long long>(arrived),
           static_cast<unsigned long long>(passes_until(sends)));
  }

  // As both ends poll that have nothing to send.
  void poll_both(int passes) {
    for (int i = 0; i < passes; ++i) {
      host_.now_ns += kPassNs;
      pass_receiver(UINT64_MAX);
      settle();
      pass_sender(UINT64_MAX);
      settle();
    }
  }

  // Polled every 20 us, ticked as a connection that NCCL polls is.
  void print_silent() {
    settle();
    sender_->tick(host_.now_ns, kPassNs);
    host_.woken = false;
    poll_both(400);
    const bool needless = host_.woken;
    for (int i = 0; i < 32; ++i) {  // what is sent next has its receive
      pass_receiver(UINT64_MAX);
      settle();
    }
    uint64_t us = 0, given_up_us = 0;
    host_.woken = false;
    for (; !host_.woken && us < 1'000'000; us += kPassNs / 1000) {
      host_.now_ns += kPassNs;
      pass_sender(UINT64_MAX);
    }
    while (sender_->lanes()[0].up && given_up_us < 1'000'000) {
      sender_->tick(host_.now_ns, given_up_us == 0 ? 25'000'000 : 4'000'000);
      for (int i = 0; i < 200; ++i) {
        host_.now_ns += kPassNs;
        pass_sender(UINT64_MAX);
      }
      given_up_us += 4'000;
    }
    printf("%d %llu %llu\n", needless, static_cast<unsigned long long>(us),
           static_cast<unsigned long long>(given_up_us));
  }

  // The last tick saw it polled; then something is sent that the fabric does not carry, and nobody polls any more.
  void print_abandoned() {
    poll_both(400);
    sender_->tick(host_.now_ns, 50'000'000);
    const bool watched = sender_->watched();
    for (int i = 0; i < 8; ++i) pass_sender(UINT64_MAX);
    uint64_t ms = 0;
    while (sender_->lanes()[0].up && ms < 1000) {
      // As PluginEngine::tick() has them.
      const uint64_t next_ms = sender_->suspects() ? 4 : sender_->watched() ? 50 : 25;
      host_.now_ns += next_ms * 1'000'000;
      ms += next_ms;
      sender_->tick(host_.now_ns, next_ms * 1'000'000);
    }
    printf("%d %llu\n", watched, static_cast<unsigned long long>(ms));
  }

  void run(uint64_t messages) {
    for (uint64_t idle = 0; received_ < messages || acknowledged_ < messages; ++idle) {
      if (idle > 1'000'000) broken("nothing moves");
      host_.now_ns += kPassNs;
      pass_receiver(messages);
      settle();
      pass_sender(messages);
      settle();
    }
  }

 private:
  void connect(uint32_t lanes) {
    DialPlan plan;
    if (!sender_->want_dial(host_.now_ns, &plan)) broken("no dial");
    auto here = VerbsPair::make(&devices_, {devices_.all()[0].get(), 1, 1}, {}, VerbsPair::End::kSender, 5);
    auto there =
        VerbsPair::make(&devices_, {devices_.all()[1].get(), 1, 1}, {}, VerbsPair::End::kReceiver, 5);
    const VerbsSetup peer = there->setup();
    if (!there->connect(here->setup()) || !here->connect(peer)) broken("no queue pair");
    Hello hello;
    hello.connection = 7;
    hello.lanes = lanes;
    hello.lane = hello.device = plan.lane;
    hello.epoch = plan.epoch;
    HelloReply reply;
    reply.status = receiver_->hello(hello, plan.lane, &reply.held, host_.now_ns);
    if (reply.status != HelloStatus::kOk) broken("no hello");
    receiver_->attach(plan.lane, plan.epoch,
                      make_verbs_lane(std::move(there), -1, plan.lane, &receiver_nics_, reaper_),
                      host_.now_ns);
    sender_->dialled(plan.lane, plan.epoch,
                     make_verbs_lane(std::move(here), -1, plan.lane, &sender_nics_, reaper_), &reply,
                     host_.now_ns);
  }
  template <typename Pass>
  uint64_t idle(uint32_t passes, Pass&& pass) {
    drives_ = 0;
    for (uint32_t i = 0; i < passes; ++i)
      if (pass()) broken("something has come of nothing");
    return drives_;
  }
  template <typename Pass>
  uint64_t passes_until(Pass&& pass) {
    for (uint64_t passes = 1; passes < 1000; ++passes)
      if (pass()) return passes;
    broken("it does not come");
  }
  void settle() {
    for (int quiet = 0; quiet < 64; quiet = fabric_.step() ? 0 : quiet + 1) {
    }
  }
  void pass_receiver(uint64_t messages) {
    const uint64_t now = host_.now_ns;
    if (posted_ < messages && posted_ - received_ < kUnderWay) {
      uint8_t* data = in_.data() + (posted_ % kUnderWay) * bytes_;
      receives_[posted_ % kUnderWay] = receiver_->receive(data, bytes_, in_memory_, now);
      ++posted_;
      return;
    }
    uint32_t size = 0;
    bool truncated = false;
    if (received_ == posted_) {  // of a large message the receiver has reported without being asked
      if (bytes_ <= kEagerBytes) receiver_->flush_ack(now);
      return;
    }
    ReceiveMessage* oldest = receives_[received_ % kUnderWay];
    const bool waits = receiver_->waits(oldest);
    counts[1].drives += !waits;
    if (waits || !receiver_->test(oldest, &size, &truncated, now)) {
      receiver_->flush_ack(now);
      return;
    }
    const uint8_t* data = in_.data() + (received_ % kUnderWay) * bytes_;
    if (size != bytes_ || data[0] != static_cast<uint8_t>(received_) ||
        data[bytes_ - 1] != static_cast<uint8_t>(received_))
      broken("another message");
    ++received_;
  }
  void pass_sender(uint64_t messages) {
    const uint64_t now = host_.now_ns;
    if (sent_ < messages && sent_ - acknowledged_ < sends_under_way_) {
      uint8_t* data = out_.data() + (sent_ % kUnderWay) * bytes_;
      memset(data, static_cast<int>(sent_ % 256), bytes_);
      sends_[sent_ % kUnderWay] = sender_->send(data, static_cast<uint32_t>(bytes_), 0, out_memory_, now);
      ++sent_;
      return;
    }
    uint32_t size = 0;
    SendMessage* oldest = sends_[acknowledged_ % kUnderWay];
    if (acknowledged_ == sent_ || sender_->waits(oldest)) return;
    ++counts[0].drives;
    if (sender_->test(oldest, &size, now)) ++acknowledged_;
  }

  const size_t bytes_;
  const uint64_t sends_under_way_;
  Host host_;
  stand_in::Fabric fabric_{1};
  VerbsLibrary library_ = fabric_.library();
  VerbsDevices devices_{&library_};
  std::shared_ptr<VerbsReaper> reaper_ = std::make_shared<VerbsReaper>();
  NicDevices sender_nics_, receiver_nics_;
  WireNic nics_[2];
  std::unique_ptr<SendConnection> sender_;
  std::shared_ptr<RecvConnection> receiver_;
  std::vector<uint8_t> out_, in_;
  VerbsMemory *out_memory_ = nullptr, *in_memory_ = nullptr;
  SendMessage* sends_[kUnderWay] = {};
  ReceiveMessage* receives_[kUnderWay] = {};
  uint64_t sent_ = 0, acknowledged_ = 0, posted_ = 0, received_ = 0;
  uint64_t drives_ = 0;
};

void print(const char* end, const Counts& c) {
  printf("\"%s\": {\"doorbells\": %llu, \"requests\": %llu, \"bytes\": %llu, \"completions\": %llu, ", end,
         static_cast<unsigned long long>(c.doorbells), static_cast<unsigned long long>(c.requests),
         static_cast<unsigned long long>(c.bytes), static_cast<unsigned long long>(c.completions));
  printf("\"receive_posts\": %llu, \"drives\": %llu}", static_cast<unsigned long long>(c.receives),
         static_cast<unsigned long long>(c.drives));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const size_t bytes = strtoull(argv[1], nullptr, 10);
  const std::set<std::string> modes(argv + 3, argv + argc);
  Stream stream(bytes, modes.count("fleet") > 0, modes.count("one") > 0, modes.count("rails") > 0 ? 2 : 1);
  stream.run(32);  // until its rate is known
  if (modes.count("ahead") > 0) {
    stream.print_ahead();
    return 0;
  }
  if (modes.count("silent") > 0) {
    stream.print_silent();
    return 0;
  }
  if (modes.count("abandoned") > 0) {
    stream.print_abandoned();
    return 0;
  }
  if (modes.count("idle") > 0) {
    stream.print_idle(1600);
    return 0;
  }
  counts[0] = counts[1] = Counts{};
  stream.run(32 + strtoull(argv[2], nullptr, 10));
  printf("{");
  print("sender", counts[0]);
  printf(", ");
  print("receiver", counts[1]);
  printf("}\n");
}
