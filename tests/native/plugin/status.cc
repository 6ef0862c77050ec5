// What `status` answers of a job with many connections (nccl_plugin/src/control/status.cc), and what that takes.
//
// Usage: plugin_status CONNECTIONS LANES; asks for all pages as a client does. Prints the pages, the connections in them,
// the sums of NIC 0 in each page, and processor time in microseconds: of all pages, and of the same pages of jobs that
// have the connections of one page only, whose other connections cost nothing. With a third argument it asks the same
// again and again instead and prints how old each answer is, in ms: at once, 30 ms later, after another question, 49 ms
// later, after an event, 10 ms later, after a request that changes something, after a connection has come, 50 ms later.
#include "control/status.h"

#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "control/controlled_plugin.h"
#include "control/requests.h"
#include "core/send_connection.h"
#include "test_runtime.h"

using namespace fabricpulse;

namespace {

// A lane that is up, and nothing more.
struct QuietLane final : LaneTransport {
  fp_lane_transport kind() const override { return FP_LANE_TCP; }
  bool post_chunk(const FrameHeader&, const void*, const RegisteredMemory*) override { return true; }
  bool post_state(const FrameHeader&, const HeldState*) override { return true; }
  uint32_t chunks_taken() const override { return 0; }
  bool backlog() const override { return false; }
  LaneStatus flush() override { return LaneStatus::kIdle; }
  LaneStatus poll(uint32_t, LaneSink*) override { return LaneStatus::kIdle; }
  PathSample sample() const override { return {}; }
  int wait_fd() const override { return -1; }
  uint64_t queue_pair() const override { return 77; }
  uint32_t entropy() const override { return 50'000; }
  void close(bool) override {}
};

class Plugin final : public ControlledPlugin {
 public:
  Plugin() {
    config_.telemetry = false;
    std::string complaint;
    telemetry_.open(config_, "test", &complaint);
  }
  const Config& config() const override { return config_; }
  Telemetry* telemetry() override { return &telemetry_; }
  uint64_t now() const override { return now_ns; }
  int64_t host_clock() const override { return 0; }
  bool fleet_clock(int64_t*) const override { return false; }
  bool nic_up(uint32_t) const override { return true; }
  bool nic_avoided(uint32_t) const override { return false; }
  const char* nic_name(uint32_t) const override { return "rail0"; }
  uint64_t nic_bytes_per_second(uint32_t) const override { return 1'000'000'000; }
  void wake() override {}
  void warn(const std::string&) override {}
  void info(const std::string&) override {}
  uint32_t nic_count() const override { return 1; }
  bool link_up(uint32_t) const override { return true; }
  bool find_nic(const std::string&, uint32_t*) const override { return false; }
  void set_avoided(uint32_t, bool) override {}
  std::vector<std::shared_ptr<Connection>> connections() const override { return all; }
  uint32_t detail() const override { return 0; }
  void set_detail(uint32_t) override {}

 private:
  Config config_;
  Telemetry telemetry_;

 public:
  uint64_t now_ns = 5'000'000'000;
  std::vector<std::shared_ptr<Connection>> all;  // ends before the telemetry that it writes to
};

double cpu_us() {
  timespec used{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) * 1e6 + static_cast<double>(used.tv_nsec) * 1e-3;
}

std::string field(const std::string& answer, const std::string& name) {
  size_t at = answer.find("\"" + name + "\":");
  if (at == std::string::npos) return "";
  at += name.size() + 3;
  return answer.substr(at, answer.find_first_of(",}", at) - at);
}

// Least of some runs, and the answer.
double cost(Plugin* plugin, const StatusQuery& query, StatusSums* sums, std::string* answer) {
  double least = 1e12;
  for (int run = 0; run < 5; ++run) {
    const double before = cpu_us();
    *answer = render_status(plugin, query, sums);
    least = std::min(least, cpu_us() - before);
  }
  return least;
}

std::shared_ptr<SendConnection> sender_of(Plugin* plugin, uint64_t id, unsigned long lanes) {
  auto sender = std::make_shared<SendConnection>(plugin, id, 0, 1, std::vector<NicPair>(lanes, {0, 0}));
  WireNic nic;
  snprintf(nic.device, sizeof(nic.device), "rail0");
  sender->set_peer({}, &nic, 1);
  DialPlan plan;
  HelloReply reply;
  while (sender->want_dial(plugin->now(), &plan))
    sender->dialled(plan.lane, plan.epoch, std::make_unique<QuietLane>(), &reply, plugin->now());
  return sender;
}

void print_ages(Plugin* plugin) {
  ControlRequests requests(plugin);
  const std::string question = R"({"op":"status"})", other = R"({"op":"status","limit":1})",
                    change = R"({"op":"detail","op_id":"a","generation":1,"level":0})";
  const auto ask = [&](const std::string& asked) {
    return requests.answer(asked.data(), asked.size(), true, true);
  };
  const auto after = [&](uint64_t ms) {
    plugin->now_ns += ms * 1'000'000;
    printf("%s ", field(ask(question), "age_ms").c_str());
  };
  after(0);
  after(30);
  ask(other);
  after(0);
  after(49);
  plugin->telemetry()->event(EventFields{FP_EVENT_LANE_DOWN}, {});
  after(0);
  after(10);
  ask(change);
  after(0);
  plugin->all.push_back(sender_of(plugin, 1'000'000, 1));
  after(0);
  after(50);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) return 2;
  const auto connections = strtoul(argv[1], nullptr, 10), lanes = strtoul(argv[2], nullptr, 10);
  Plugin plugin;
  for (uint64_t id = 1; id <= connections; ++id) {
    plugin.all.push_back(sender_of(&plugin, id, lanes));
  }
  if (argc == 4) {
    print_ages(&plugin);
    return 0;
  }
  const auto everything = plugin.all;
  double whole = 0, alone = 0;
  uint64_t pages = 0, listed = 0;
  std::set<std::string> sums;
  StatusQuery query;
  StatusSums kept;
  for (bool more = true; more; ++pages) {
    std::string answer, next;
    StatusSums none;
    whole += cost(&plugin, query, &kept, &answer);
    sums.insert(field(answer, "lanes") + "/" + field(answer, "lanes_up") + "/" +
                field(answer, "connections_total"));
    next = field(answer, "next");
    more = next != "null";
    const uint64_t last = more ? strtoull(next.c_str() + 1, nullptr, 16) : connections;
    plugin.all.assign(everything.begin() + static_cast<long>(query.after),
                      everything.begin() + static_cast<long>(last));
    alone += cost(&plugin, query, &none, &answer);
    plugin.all = everything;
    listed += last - query.after;
    query.after = last;
  }
  printf(
      "{\"pages\": %llu, \"listed\": %llu, \"sums\": \"%s\", \"kinds_of_sums\": %zu, \"whole_us\": %.0f, "
      "\"alone_us\": %.0f}\n",
      static_cast<unsigned long long>(pages), static_cast<unsigned long long>(listed), sums.begin()->c_str(),
      sums.size(), whole, alone);
}
