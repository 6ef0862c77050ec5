#include "transport/verbs/verbs_pair.h"

#include <errno.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>

namespace fabricpulse {
namespace {

constexpr uint32_t kSendDepth = 512;
constexpr uint32_t kInlineBytes = 256;
// A try lasts 4.096 us * 2^14 = 67 ms (devices take up to four times that). With 17 ms a busy host's
// acknowledgements came too late now and then, and what was sent again for nothing cost two thirds of the
// bandwidth. A dead path is found by the stall timer long before. Not 7 tries: that means endless with
// rdma_rxe.
constexpr uint8_t kTimeout = 14, kRetries = 6;
constexpr uint8_t kRnrEndless = 7, kRnrTimer = 12;  // 0.64 ms
constexpr uint8_t kHopLimit = 64;
constexpr uint64_t kDrainNs = 50'000'000, kMostDrainNs = 500'000'000;
constexpr int kLeastPolls = 1000;   // within kMostDrainNs
constexpr uint64_t kReceiveId = 0;  // no send has it

}  // namespace

std::unique_ptr<VerbsPair> VerbsPair::make(VerbsDevices* devices, const VerbsPort& port,
                                           const NicAddress& gid, End end, uint32_t flow_label) {
  std::unique_ptr<VerbsPair> made(new VerbsPair(devices, port, end));
  if (!made->create()) return nullptr;
  VerbsSetup& setup = made->setup_;
  memcpy(setup.gid, gid.data(), sizeof(setup.gid));
  setup.flow_label = flow_label;
  // A packet of an earlier queue pair of this number has a sequence number that is far off.
  if (getrandom(&setup.psn, sizeof(setup.psn), 0) != sizeof(setup.psn)) return nullptr;
  setup.psn &= 0xffffff;
  uint32_t mtu = devices->mtu(port);
  if (mtu < 1 || mtu > 5) {
    errno = ENETDOWN;
    return nullptr;
  }
  setup.mtu = static_cast<uint8_t>(mtu);
  return made;
}

bool VerbsPair::create() {
  const VerbsLibrary& library = devices_->library();
  const size_t chunk_bytes = kChunkWindow * kChunkSlotBytes;
  const size_t control_bytes = kControlSlots * kControlSlotBytes;
  const size_t early_bytes = end_ == End::kReceiver ? size_t{kEagerSlots} * kEagerBytes : 0;
  arena_bytes_ = chunk_bytes + 2 * control_bytes + early_bytes;
  void* arena = mmap(nullptr, arena_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (arena == MAP_FAILED) return false;
  arena_ = static_cast<uint8_t*>(arena);
  chunks_ = arena_;
  control_in_ = chunks_ + chunk_bytes;
  control_out_ = control_in_ + control_bytes;
  early_ = control_out_ + control_bytes;
  arena_region_ =
      library.reg_mr(port_.device->domain, arena_, arena_bytes_, ib::kLocalWrite | ib::kRemoteWrite);
  if (arena_region_ == nullptr) return false;

  completions_ = library.create_cq(port_.device->context, static_cast<int>(kSendDepth + receive_depth()),
                                   nullptr, nullptr, 0);
  if (completions_ == nullptr) return false;
  ib::QueuePairInit init{};
  init.send_cq = init.recv_cq = completions_;
  init.capacity = {kSendDepth, receive_depth(), 1, 1, kInlineBytes};
  init.type = ib::kReliableConnected;
  pair_ = library.create_qp(port_.device->domain, &init);
  if (pair_ == nullptr) {  // without inline data it may be possible
    init.capacity = {kSendDepth, receive_depth(), 1, 1, 0};
    pair_ = library.create_qp(port_.device->domain, &init);
  }
  if (pair_ == nullptr) return false;
  send_depth_ = std::min(init.capacity.send_requests, kSendDepth);
  inline_bytes_ = init.capacity.inline_bytes;
  setup_.number = pair_->number;
  setup_.key = arena_region_->remote_key;
  setup_.chunks = reinterpret_cast<uint64_t>(chunks_);
  setup_.control = reinterpret_cast<uint64_t>(control_in_);
  setup_.early = reinterpret_cast<uint64_t>(early_);

  ib::QueuePairAttributes attributes{};
  attributes.state = ib::kInit;
  attributes.port = port_.port;
  attributes.access = ib::kRemoteWrite;
  int error = library.modify_qp(pair_, &attributes,
                                ib::kSetState | ib::kSetPkeyIndex | ib::kSetPort | ib::kSetAccess);
  if (error != 0) errno = error;
  return error == 0;
}

bool VerbsPair::connect(const VerbsSetup& peer) {
  const VerbsLibrary& library = devices_->library();
  peer_ = peer;
  ib::QueuePairAttributes attributes{};
  attributes.state = ib::kReadyToReceive;
  attributes.path_mtu = std::min(setup_.mtu, peer.mtu);
  attributes.peer_number = peer.number;
  attributes.recv_psn = peer.psn;
  attributes.max_peer_reads = 1;
  attributes.min_rnr_timer = kRnrTimer;
  memcpy(attributes.address.route.destination.raw, peer.gid, sizeof(peer.gid));
  attributes.address.route.flow_label = setup_.flow_label;
  attributes.address.route.source_gid_index = port_.gid_index;
  attributes.address.route.hop_limit = kHopLimit;
  attributes.address.is_global = 1;
  attributes.address.port = port_.port;
  int error = library.modify_qp(pair_, &attributes,
                                ib::kSetState | ib::kSetAddress | ib::kSetPathMtu | ib::kSetPeerNumber |
                                    ib::kSetRecvPsn | ib::kSetMaxPeerReads | ib::kSetMinRnrTimer);
  if (error == 0 && !post_receives(receive_depth())) return false;
  if (error == 0) {
    attributes = {};
    attributes.state = ib::kReadyToSend;
    attributes.timeout = kTimeout;
    attributes.retries = kRetries;
    attributes.rnr_retries = kRnrEndless;
    attributes.send_psn = setup_.psn;
    attributes.max_reads = 1;
    error = library.modify_qp(pair_, &attributes,
                              ib::kSetState | ib::kSetTimeout | ib::kSetRetries | ib::kSetRnrRetries |
                                  ib::kSetSendPsn | ib::kSetMaxReads);
  }
  if (error != 0) errno = error;
  return error == 0;
}

// Messages are announced by immediate data: a receive needs no memory of its own.
bool VerbsPair::post_receives(uint32_t count) {
  ib::RecvRequest requests[32];
  while (count > 0) {
    uint32_t batch = std::min<uint32_t>(count, 32);
    for (uint32_t i = 0; i < batch; ++i)
      requests[i] = {kReceiveId, i + 1 < batch ? &requests[i + 1] : nullptr, nullptr, 0};
    ib::RecvRequest* bad = nullptr;
    if (int error = pair_->context->ops.post_recv(pair_, requests, &bad); error != 0) {
      errno = error;
      return false;
    }
    count -= batch;
  }
  return true;
}

void VerbsPair::end(uint64_t (*clock)()) {
  if (pair_ == nullptr || ended_) return;
  ended_ = true;
  const VerbsLibrary& library = devices_->library();
  ib::QueuePairAttributes attributes{};
  attributes.state = ib::kErrorState;
  if (library.modify_qp(pair_, &attributes, ib::kSetState) == 0) {
    // A flushed receive comes behind all that has landed: who flushes it is who would have written, and drops what
    // comes later. That is the end of the queue pair for its peer; destroying it may take long (rdma_rxe waits up to
    // 50 s for packets of it that wait for a neighbour) and is left to the reaper.
    const uint64_t started = clock();
    ib::WorkCompletion found[16];
    bool flushed = false;
    // Also where this thread did not run meanwhile: what is there is drained. Not for ever where nothing is: each poll
    // may take a time slice of other threads.
    for (int polls = 0;; ++polls) {
      int count = pair_->context->ops.poll_cq(completions_, 16, found);
      if (count < 0) break;
      for (int i = 0; i < count; ++i) flushed |= found[i].status != ib::kSuccess && found[i].id == kReceiveId;
      if (count > 0) continue;
      if (flushed) return;
      const uint64_t passed = clock() - started;
      if (passed >= kMostDrainNs || (passed >= kDrainNs && polls >= kLeastPolls)) break;
      // A device in software flushes on a kernel thread, which may wait for this processor.
      sched_yield();
    }
  }
  library.destroy_qp(pair_);
  pair_ = nullptr;
}

VerbsPair::~VerbsPair() {
  const VerbsLibrary& library = devices_->library();
  if (pair_ != nullptr) library.destroy_qp(pair_);
  if (completions_ != nullptr) library.destroy_cq(completions_);
  if (arena_region_ != nullptr) library.dereg_mr(arena_region_);
  if (arena_ != nullptr) munmap(arena_, arena_bytes_);
}

}  // namespace fabricpulse
