// libFuzzer harness of everything that a broken or malicious peer can send on a queue pair lane: the set-up frames of
// Hello and HelloReply, what it writes into chunk and control slots, the receives that it names, immediate data;
// against one end of a connection with one lane, over the stand-in for libibverbs (verbs_stand_in.h).
//
// The input is a program for the peer. Its first byte says which end is tested; then come steps of one byte and its
// arguments (missing ones are 0). The stand-in ends the program when the tested end reads memory that it has not
// registered or has more requests under way than it may; AddressSanitizer finds the rest.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "core/recv_connection.h"
#include "core/send_connection.h"
#include "fuzz_input.h"
#include "fuzz_standalone.h"
#include "test_runtime.h"
#include "transport/verbs/verbs_lane.h"
#include "transport/verbs/verbs_slots.h"
#include "verbs_stand_in.h"

using namespace fabricpulse;

namespace {

// The peer's end: a queue pair without a lane.
class Peer {
 public:
  Peer(VerbsDevices* devices, stand_in::Fabric* fabric, VerbsPair::End end)
      : devices_(devices), fabric_(fabric), end_(end) {}

  // A fresh queue pair at each end. Returns the tested one, connected with what the peer says of its own, or nullptr
  // where that cannot be. Bytes of the set-up are damaged as the input says, as VerbsTransport would read them.
  std::unique_ptr<VerbsPair> meet(FuzzInput* input) {
    VerbsPort port{devices_->all()[0].get(), 1, 1};
    auto other = end_ == VerbsPair::End::kSender ? VerbsPair::End::kReceiver : VerbsPair::End::kSender;
    auto tested = VerbsPair::make(devices_, port, {}, other, 5);
    pair_ = VerbsPair::make(devices_, port, {}, end_, 5);
    if (!tested || !pair_ || !pair_->connect(tested->setup())) abort();
    under_way_ = 0;
    uint8_t said[kSetupBytes] = {};
    memcpy(said, &pair_->setup(), sizeof(VerbsSetup));
    for (uint32_t damaged = input->byte() % 8; damaged > 0; --damaged) {
      uint32_t at = input->byte() % kSetupBytes;
      said[at] = static_cast<uint8_t>(said[at] ^ input->byte());
    }
    VerbsSetup setup;
    memcpy(&setup, said, sizeof(setup));
    if (!setup.plausible()) return nullptr;
    if (setup.magic != VerbsSetup::kMagic || setup.number >> 24 != 0 || setup.psn >> 24 != 0) abort();
    if (setup.mtu < 1 || setup.mtu > 5 || setup.flow_label >> 20 != 0) abort();
    return tested->connect(setup) ? std::move(tested) : nullptr;
  }

  // Writes into memory of the tested end, and tells so if there is immediate data.
  void write(uint64_t address, const void* data, uint32_t size, const uint32_t* immediate) {
    if (!pair_ || under_way_ > 256) return;
    ib::Segment segment{};
    segment.address = reinterpret_cast<uint64_t>(data);
    segment.length = size;
    ib::SendRequest request{}, *bad = nullptr;
    request.id = 1;
    request.segments = &segment;
    request.segment_count = size > 0 ? 1 : 0;
    request.flags = ib::kInline | ib::kSignaled;
    request.opcode = immediate != nullptr ? ib::kWriteWithImmediate : ib::kWrite;
    if (immediate != nullptr) request.immediate = htonl(*immediate);
    request.remote.address = address;
    request.remote.key = pair_->peer().key;
    (void)pair_->pair()->context->ops.post_send(pair_->pair(), &request, &bad);
    ++under_way_;
  }
  void write_immediate(uint32_t immediate) { write(0, nullptr, 0, &immediate); }
  uint64_t chunk_slot(uint32_t index) const {
    return pair_->peer().chunks + uint64_t{index % kChunkWindow} * kChunkSlotBytes;
  }
  uint64_t control_slot(uint32_t index) const {
    return pair_->peer().control + uint64_t{index % kControlSlots} * kControlSlotBytes;
  }
  bool met() const { return pair_ != nullptr; }

  // Things happen in the fabric; what the tested end has sent is taken, and ignored.
  void step() {
    for (int i = 0; i < 40 && fabric_->step(); ++i) {
    }
    if (!pair_) return;
    ib::WorkCompletion found[16];
    int count;
    while ((count = pair_->pair()->context->ops.poll_cq(pair_->completions(), 16, found)) > 0)
      for (int i = 0; i < count; ++i) {
        if (found[i].id == 1) {
          --under_way_;
        } else if (found[i].status == ib::kSuccess) {
          (void)pair_->post_receives(1);
        }
      }
  }

 private:
  VerbsDevices* devices_;
  stand_in::Fabric* fabric_;
  const VerbsPair::End end_;
  std::unique_ptr<VerbsPair> pair_;
  uint32_t under_way_ = 0;
};

uint32_t immediate_of(Immediate kind, uint32_t value) {
  return static_cast<uint32_t>(kind) << kImmediateShift | (value & kImmediateMask);
}

// A control slot with a state frame, and receives behind it; counts of those as they like to be.
void write_control(FuzzInput* input, Peer* peer) {
  alignas(8) uint8_t bytes[kControlSlotBytes] = {};
  auto* slot = reinterpret_cast<ControlSlot*>(bytes);
  new (slot) ControlSlot();
  slot->header.type = static_cast<FrameType>(1 + input->byte() % 8);
  const FrameType type = slot->header.type;
  const bool states = type == FrameType::kState || type == FrameType::kFenced || type == FrameType::kBye;
  slot->header.length = input->byte() % 8 == 7 ? input->word() : states ? sizeof(HeldState) : 0;
  slot->header.offset = input->byte() % 3;
  slot->header.message = static_cast<uint32_t>(input->number());
  slot->header.chunk = input->number();
  slot->held.base = input->number();
  slot->held.bitmap[0] = input->number();
  slot->held.posted = input->number();
  slot->held.closed[0] = static_cast<uint32_t>(input->number());
  slot->receives = static_cast<uint16_t>(input->number());
  slot->keys = static_cast<uint16_t>(input->number());
  auto* out = reinterpret_cast<uint8_t*>(slot + 1);
  for (uint32_t i = 0; i < 4; ++i) {
    ReceiveHead head{static_cast<uint32_t>(input->number()), input->word(), input->number() << 12};
    memcpy(out + i * receive_bytes(1), &head, sizeof(head));
    uint32_t key = static_cast<uint32_t>(input->number());
    memcpy(out + i * receive_bytes(1) + sizeof(head), &key, sizeof(key));
  }
  uint32_t index = input->byte();
  uint32_t immediate = immediate_of(Immediate::kControl, index % kControlSlots);
  peer->write(peer->control_slot(index), bytes, kControlSlotBytes, &immediate);
}

void write_chunk(FuzzInput* input, Peer* peer) {
  ChunkSlot slot{};
  slot.header.chunk = input->number();
  slot.header.message = static_cast<uint32_t>(input->number());
  slot.header.message_bytes = input->word();
  slot.header.offset = input->byte() % 4 == 0 ? input->word() : 0;
  slot.header.length = input->byte() % 4 == 0 ? input->word() : slot.header.message_bytes;
  slot.header.flags = input->byte();
  slot.header.stamp = static_cast<int64_t>(input->number());
  slot.place = static_cast<Place>(input->byte() % 6);
  uint32_t immediate =
      immediate_of(Immediate::kChunk, static_cast<uint32_t>(slot.header.chunk) % kChunkWindow);
  peer->write(peer->chunk_slot(static_cast<uint32_t>(slot.header.chunk)), &slot, sizeof(slot), &immediate);
}

void write_raw(FuzzInput* input, Peer* peer) {
  uint8_t bytes[256] = {};
  const uint8_t size = input->byte();
  input->fill(bytes, size);
  const uint32_t index = input->byte();
  const uint8_t kind = input->byte() % 7;
  uint32_t immediate = 0;
  if (kind == 5) {
    input->fill(&immediate, sizeof(immediate));
    immediate |= kPlaced;
  } else if (kind == 6) {
    PlacedChunk placed;
    placed.chunk = input->byte();
    placed.message = input->byte();
    const uint8_t end = input->byte();
    placed.last = end % 2 != 0;
    placed.offset = end / 2 * PlacedChunk::kOffsetUnit;
    immediate = fabricpulse::immediate_of(placed);
  } else {
    immediate = immediate_of(static_cast<Immediate>(kind), index);
  }
  peer->write(index % 2 != 0 ? peer->chunk_slot(index / 2) : peer->control_slot(index / 2), bytes, size,
              &immediate);
}

// A slot whose bytes are all the peer's, in memory that ends where the slot ends.
void read_slot(FuzzInput* input) {
  std::unique_ptr<uint64_t[]> memory(new uint64_t[kControlSlotBytes / sizeof(uint64_t)]());
  auto* slot = reinterpret_cast<ControlSlot*>(memory.get());
  slot->receives = static_cast<uint16_t>(input->word());
  slot->keys = static_cast<uint16_t>(input->word());
  input->fill(slot + 1, 64);
  uint32_t count = 0;
  const bool read = read_receives(slot, [&](const PeerReceive& receive) {
    ++count;
    for (uint32_t nic = slot->keys; nic < kMaxNics; ++nic)
      if (receive.keys[nic] != 0) abort();
  });
  if (!read && count > 0) abort();
  if (!read) return;
  if (count != slot->receives || count > kMostReceives || slot->keys > kMaxNics) abort();
  if (sizeof(ControlSlot) + count * receive_bytes(slot->keys) > kControlSlotBytes) abort();
}

// Steps that mean the same to both ends. False: it was none of them.
bool common(uint8_t step, FuzzInput* input, Peer* peer) {
  if (step % 8 == 5) {
    read_slot(input);
    return true;
  }
  if (step % 8 > 3) return false;
  if (!peer->met()) return true;
  switch (step % 8) {
    case 0:
      write_control(input, peer);
      break;
    case 1:
      write_chunk(input, peer);
      break;
    case 2:
      write_raw(input, peer);
      break;
    default: {
      uint32_t raw;
      input->fill(&raw, sizeof(raw));
      peer->write_immediate(raw);
    }
  }
  return true;
}

struct World {
  explicit World(VerbsPair::End peers) : peer(&devices, &fabric, peers) {
    devices.refresh();
    for (auto& device : devices.all())
      if (!devices.use(device.get())) abort();
    for (auto& nic : nics) nic = -1;
    nics[0] = 0;
  }
  std::unique_ptr<LaneTransport> lane(std::unique_ptr<VerbsPair> pair) {
    return make_verbs_lane(std::move(pair), -1, 0, &nics, reaper);
  }

  stand_in::Fabric fabric{1};
  VerbsLibrary library = fabric.library();
  VerbsDevices devices{&library};
  std::shared_ptr<VerbsReaper> reaper = std::make_shared<VerbsReaper>();
  NicDevices nics;
  SteppedRuntime host;
  Peer peer;
};

// What NCCL has asked for and waits for; the buffer has the exact size of its message and is registered until the end,
// as NCCL's is.
template <typename Message>
struct Posted {
  Message* message;
  std::unique_ptr<uint8_t[]> data;
  size_t size;
  VerbsMemory* memory;
  bool done = false;
};

// post(made) gives the request, nullptr for "not now".
template <typename Message, typename Post>
void add(World* world, std::vector<Posted<Message>>* requests, size_t size, Post&& post) {
  if (requests->size() >= 64) return;
  const size_t bytes = std::max<size_t>(size, 1);
  Posted<Message> made{nullptr, std::unique_ptr<uint8_t[]>(new uint8_t[bytes]()), size, nullptr};
  std::string why;
  made.memory = world->devices.register_memory(made.data.get(), bytes, &why);
  if (made.memory == nullptr) abort();
  made.message = post(made);
  made.done = made.message == nullptr;
  requests->push_back(std::move(made));
}

template <typename Message>
void forget(World* world, std::vector<Posted<Message>>* requests) {
  world->reaper->end_all();
  for (auto& posted : *requests) world->devices.deregister_memory(posted.memory);
}

void test_receiver(FuzzInput* input) {
  World world(VerbsPair::End::kSender);
  std::vector<Posted<ReceiveMessage>> requests;
  auto receiver = std::make_unique<RecvConnection>(&world.host, 1, 0, 1, 1);
  uint32_t epoch = 0;
  auto join = [&] {
    auto pair = world.peer.meet(input);
    Hello hello;
    hello.lanes = 1;
    hello.epoch = ++epoch;
    HeldState state;
    if (pair && receiver->hello(hello, 0, &state, world.host.now_ns) == HelloStatus::kOk)
      receiver->attach(0, epoch, world.lane(std::move(pair)), world.host.now_ns);
  };
  join();
  while (input->more() && !receiver->lost()) {
    uint8_t step = input->byte();
    if (!common(step, input, &world.peer)) {
      if (step % 8 == 4) {
        add(&world, &requests, input->word(), [&](const Posted<ReceiveMessage>& made) {
          return receiver->receive(made.data.get(), made.size, made.memory, world.host.now_ns);
        });
      } else if (step % 8 == 6) {
        world.host.now_ns += uint64_t{input->byte()} * 1'000'000;
        receiver->tick(world.host.now_ns, 1'000'000);
      } else {
        join();
      }
    }
    world.host.now_ns += 300'000;
    world.peer.step();
    receiver->drive(world.host.now_ns);
    for (auto& posted : requests) {
      uint32_t size = 0;
      bool truncated = false;
      if (posted.done || !receiver->test(posted.message, &size, &truncated, world.host.now_ns)) continue;
      if (truncated != (size > posted.size)) abort();
      posted.done = true;
    }
  }
  receiver->close(world.host.now_ns);
  receiver.reset();
  forget(&world, &requests);
}

void test_sender(FuzzInput* input) {
  World world(VerbsPair::End::kReceiver);
  std::vector<Posted<SendMessage>> requests;
  auto sender = std::make_unique<SendConnection>(&world.host, 1, 0, 1, std::vector<NicPair>{{0, 0}});
  WireNic nics[1];
  sender->set_peer({}, nics, 1);
  auto dial = [&] {
    DialPlan plan;
    if (!sender->want_dial(world.host.now_ns, &plan)) return;
    auto pair = world.peer.meet(input);
    HelloReply reply;
    reply.epoch = plan.epoch;
    reply.nic_count = 1;
    reply.held.posted = input->byte();
    const bool met = pair != nullptr;
    sender->dialled(0, plan.epoch, met ? world.lane(std::move(pair)) : nullptr, met ? &reply : nullptr,
                    world.host.now_ns);
  };
  dial();
  while (input->more() && !sender->lost()) {
    uint8_t step = input->byte();
    if (!common(step, input, &world.peer)) {
      if (step % 8 == 4) {
        add(&world, &requests, input->word(), [&](const Posted<SendMessage>& made) {
          return sender->send(made.data.get(), static_cast<uint32_t>(made.size), 0, made.memory,
                              world.host.now_ns);
        });
      } else if (step % 8 == 6) {
        world.host.now_ns += uint64_t{input->byte()} * 1'000'000;
        sender->tick(world.host.now_ns, 1'000'000);
      } else {
        world.host.now_ns += uint64_t{input->byte()} * 20'000'000;
        dial();
      }
    }
    world.host.now_ns += 300'000;
    sender->drive(world.host.now_ns);
    world.peer.step();
    for (auto& posted : requests) {
      uint32_t size = 0;
      if (posted.done || !sender->test(posted.message, &size, world.host.now_ns)) continue;
      if (size != posted.size) abort();
      posted.done = true;
    }
  }
  sender->close(world.host.now_ns);
  sender.reset();
  forget(&world, &requests);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  if (input.byte() % 2) {
    test_sender(&input);
  } else {
    test_receiver(&input);
  }
  return 0;
}
