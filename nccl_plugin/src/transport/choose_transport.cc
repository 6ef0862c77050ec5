#include "transport/choose_transport.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "transport/tcp/tcp_transport.h"
#include "transport/verbs/verbs_transport.h"

namespace fabricpulse {
namespace {

bool any_for_queue_pairs(const std::vector<NicInfo>& nics) {
  return std::any_of(nics.begin(), nics.end(),
                     [](const NicInfo& nic) { return nic.spare_use != SpareUse::kOnly; });
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::unique_ptr<Transport> choose_transport(const Config& config, Poller* poller, TransportEvents* events,
                                            std::function<void(uint64_t)> ports_changed,
                                            std::function<void(const std::string&)> warn,
                                            std::string* no_lanes, std::string* complaint) {
  if (config.lanes != "verbs" && config.lanes != "tcp" && config.lanes != "auto")
    *complaint += "FABRICPULSE_LANES=" + config.lanes + " is none of auto, verbs, tcp; auto stands. ";
  std::vector<std::string> present = VerbsDevices::present();
  bool verbs = config.lanes == "verbs" || (config.lanes != "tcp" && !present.empty());
  if (!verbs) return std::make_unique<TcpTransport>(config, poller, events);
  auto transport =
      std::make_unique<VerbsTransport>(config, poller, events, std::move(ports_changed), std::move(warn));
  std::string why;
  if (!transport->open(&why)) {
    *no_lanes = why;
  } else if (!any_for_queue_pairs(transport->discover({}))) {
    *no_lanes = "no NIC that is up (FABRICPULSE_NICS=" + (config.nics.empty() ? "all" : config.nics) +
                ") has its address as a RoCE v2 GID of an RDMA device";
  } else {
    return transport;
  }
  if (!present.empty()) *no_lanes += "; RDMA devices of this host: " + joined(present);
  *no_lanes += ". FABRICPULSE_LANES=tcp takes TCP lanes";
  return std::make_unique<TcpTransport>(config, poller, events);
}

}  // namespace fabricpulse
