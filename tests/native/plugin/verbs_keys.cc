// The keys by which a sender writes into posted receives are those of the devices that the receiver's NICs have now: also
// where a NIC has lost its device and has another one since the last state frame, so that no frame has shown it without.
// Over the stand-in for libibverbs.
//
// Usage: plugin_verbs_keys; exit 1 with a line of what broke.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_lane.h"
#include "verbs_stand_in.h"

using namespace fabricpulse;

namespace {

struct End final : LaneSink {
  uint8_t* chunk_begins(uint32_t, const FrameHeader&, bool*) override { return nullptr; }
  void chunk_ends(uint32_t, const FrameHeader&) override {}
  bool state_frame(uint32_t, const FrameHeader&, const HeldState&) override { return ++frames > 0; }
  // Its only receive is number 0.
  uint32_t posted_receives(PostedReceive* out, uint32_t most, uint64_t* next) const override {
    if (*next > 0 || most == 0) return 0;
    *next = 1;
    out[0] = {0, 4096, memory->data, memory};
    return 1;
  }
  void note_receive(const PeerReceive& receive) override { noted.push_back(receive); }

  const VerbsMemory* memory = nullptr;
  int frames = 0;
  std::vector<PeerReceive> noted;
};

int fails(const char* what) {
  fprintf(stderr, "%s\n", what);
  return 1;
}

}  // namespace

int main() {
  stand_in::Fabric fabric(1);
  fabric.holds_back = false;
  const VerbsLibrary library = fabric.library();
  VerbsDevices devices(&library);
  devices.refresh();
  for (const auto& device : devices.all())
    if (!devices.use(device.get())) return fails("a device is of no use");
  std::vector<uint8_t> data(4096);
  std::string why;
  VerbsMemory* memory = devices.register_memory(data.data(), data.size(), &why);
  if (memory == nullptr) return fails(why.c_str());

  NicDevices nics;
  for (auto& device : nics) device = -1;
  nics[0] = 0;
  nics[1] = 1;
  const VerbsPort port{devices.all()[0].get(), 1, 1};
  auto here = VerbsPair::make(&devices, port, {}, VerbsPair::End::kSender, 5);
  auto there = VerbsPair::make(&devices, port, {}, VerbsPair::End::kReceiver, 5);
  const VerbsSetup peer = there->setup();
  if (!there->connect(here->setup()) || !here->connect(peer)) return fails("no queue pair");
  auto reaper = std::make_shared<VerbsReaper>();
  auto receiver = make_verbs_lane(std::move(there), -1, 0, &nics, reaper);
  auto sender = make_verbs_lane(std::move(here), -1, 0, &nics, reaper);
  End sends, receives;
  receives.memory = memory;
  sender->attach(&sends);
  receiver->attach(&receives);
  const auto tell = [&] {
    FrameHeader header;
    header.type = FrameType::kState;
    header.length = sizeof(HeldState);
    const HeldState state{};
    const int before = sends.frames;
    if (!receiver->post_state(header, &state)) return false;
    for (int i = 0; i < 10'000 && sends.frames == before; ++i) {
      (void)receiver->flush();
      (void)fabric.step();
      (void)sender->poll(0, &sends);
      (void)receiver->poll(0, &receives);
    }
    return sends.frames == before + 1;
  };
  if (!tell() || sends.noted.size() != 1) return fails("a receive is not named");
  if (!tell() || sends.noted.size() != 1) return fails("a receive is named twice though no key has changed");

  devices.all()[1]->gone = true;
  devices.refresh();
  if (devices.all().size() != 3 || !devices.use(devices.all()[2].get())) return fails("no device has come");
  nics[1] = 2;
  if (!tell() || sends.noted.size() != 2) return fails("no key of the device that has come is named");
  const PeerReceive& now = sends.noted.back();
  if (now.keys[1] != memory->regions[2].load()->remote_key || now.keys[0] != sends.noted[0].keys[0])
    return fails("the key of a device that is gone is named");

  sender->close(false);
  receiver->close(false);
  sender.reset();
  receiver.reset();
  reaper->end_all();
  devices.deregister_memory(memory);
  return 0;
}
