// An RDMA device of a NIC ends, as the kernel reports it to the service thread, and another one comes in its place:
// its descriptor, which is ready all the time from then on, is watched no more; its NIC has no link, but where TCP may
// stand in, and is to be listened on anew, which finds the device that has come. Over the stand-in for libibverbs; the
// NIC is lo.
//
// Usage: plugin_verbs_transport; exit 1 with a line of what broke.
#include "transport/verbs/verbs_transport.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "verbs_stand_in.h"

using namespace fabricpulse;

namespace {

struct Watched final : Poller {
  void watch(int fd, uint64_t id, uint32_t) override { ids[fd] = id; }
  void unwatch(int fd) override { ids.erase(fd); }
  std::map<int, uint64_t> ids;
};

struct NoEvents final : TransportEvents {
  void hello_received(const Hello&, uint32_t, PendingLane*, uint64_t) override {}
  void dial_connected(uint64_t) override {}
  void dial_ended(uint64_t, int, const HelloReply*, std::unique_ptr<LaneTransport>, uint64_t) override {}
  void process_ended(const uint64_t (&)[2]) override {}
  void descriptors_exhausted(uint64_t) override {}
};

bool is(bool what, const char* otherwise) {
  if (!what) fprintf(stderr, "%s\n", otherwise);
  return what;
}

NicAddress loopback() {
  NicAddress address{};
  address[10] = address[11] = 0xff;
  address[12] = 127;
  address[15] = 1;
  return address;
}

// What the kernel has: one device, of which each opening has its own descriptor.
bool away, fatal;
ib::Context opened[2];
int openings;

VerbsLibrary library_of(stand_in::Fabric* fabric) {
  VerbsLibrary library = fabric->library();
  away = fatal = false;
  openings = 0;
  static const auto usual_list = library.get_device_list;
  static const auto usual_open = library.open_device;
  library.get_device_list = [](int* count) {
    ib::Device** list = usual_list(count);
    *count = away ? 0 : 1;
    return list;
  };
  library.open_device = [](ib::Device* device) {
    ib::Context* context = &opened[openings++];
    *context = *usual_open(device);
    context->async_fd = eventfd(0, EFD_CLOEXEC);
    return context;
  };
  library.close_device = [](ib::Context* context) { return close(context->async_fd); };
  library.query_gid_table = [](ib::Context*, ib::GidEntry* out, size_t, uint32_t, size_t) -> ssize_t {
    out[0] = {};
    memcpy(out[0].gid.raw, loopback().data(), sizeof(out[0].gid.raw));
    out[0].index = out[0].port = 1;
    out[0].type = ib::kGidRoceV2;
    return 1;
  };
  library.get_async_event = [](ib::Context*, ib::AsyncEvent* event) {
    errno = EAGAIN;
    event->type = ib::kEventDeviceFatal;
    return std::exchange(fatal, false) ? 0 : -1;
  };
  return library;
}

bool device_is_replaced(const char* last_resort) {
  stand_in::Fabric fabric(1);
  Config config;
  config.last_resort = last_resort;
  Watched watched;
  NoEvents events;
  int changes = 0;
  VerbsTransport transport(config, &watched, &events, [&](uint64_t) { ++changes; }, {});
  std::string error;
  if (!transport.open(library_of(&fabric), &error)) return is(false, error.c_str());
  NicInfo nic;
  nic.name = "lo";
  nic.address = loopback();
  const uint16_t port = transport.listen(0, nic, 0);
  const int fd = opened[0].async_fd;
  bool well = is(port != 0 && transport.listens(0) && transport.link_up("lo") == true,
                 "a NIC with a device does not listen, or has no link");
  if (!is(watched.ids.count(fd) == 1, "the events of a device in use are not watched")) return false;

  away = fatal = true;
  const uint64_t id = watched.ids[fd];
  transport.serve(id, 1);
  well &= is(watched.ids.count(fd) == 0, "the descriptor of a device that has ended is watched");
  well &= is(changes == 1, "nobody looks at the ports when a device has ended");
  well &= is(!transport.listens(0), "nobody would look for the device that comes");
  const bool link = *last_resort != '\0';
  well &= is(transport.link_up("lo") == link, link ? "TCP cannot stand in for a device that has ended"
                                                   : "a NIC whose device has ended has a link");
  transport.serve(id, 2);  // it was ready when another descriptor's turn came first
  well &= is(changes == 1, "the end of a device is served twice");
  well &= is(transport.listen(0, nic, port) == 0 && errno == ENODEV && !transport.listens(0),
             "a NIC without a device listens");

  away = false;
  well &= is(transport.listen(0, nic, port) == port && transport.listens(0) && openings == 2,
             "the device that has come is not opened");
  well &= is(transport.link_up("lo") == true && watched.ids.count(opened[1].async_fd) == 1,
             "the device that has come has no link, or is not watched");
  return well;
}

}  // namespace

int main() { return device_is_replaced("") && device_is_replaced("lo") ? 0 : 1; }
