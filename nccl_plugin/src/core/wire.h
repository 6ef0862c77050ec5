// The frames that two ends of a connection exchange on a lane. Little endian, fixed sizes; a stream lane sends
// frames one behind the other, a message lane one a message.
//
// Chunks go from sender to receiver, state goes back. State frames are idempotent: they hold the state, not
// its changes, so losing some with a lane costs nothing once a later one arrives on any lane.
#ifndef FABRICPULSE_CORE_WIRE_H_
#define FABRICPULSE_CORE_WIRE_H_

#include <cstdint>
#include <cstring>

namespace fabricpulse {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "frames are written as they lie in memory");

constexpr uint16_t kFrameMagic = 0xfa85;
// Bytes 0 to 11 of Hello and HelloReply (magic, version) stay as they are in every version.
constexpr uint32_t kWireVersion = 4;
// Smaller in the exhaustive exploration of the fencing, so that a state is small.
#ifndef FABRICPULSE_CHUNK_WINDOW
#define FABRICPULSE_CHUNK_WINDOW 256
#endif
#ifndef FABRICPULSE_MAX_LANES
#define FABRICPULSE_MAX_LANES 16
#endif

// Chunks between the oldest that is not held and the newest sent.
constexpr uint32_t kChunkWindow = FABRICPULSE_CHUNK_WINDOW;
constexpr uint32_t kMaxLanes = FABRICPULSE_MAX_LANES;  // of one connection
constexpr uint32_t kMaxNics = 16;                      // of one host
constexpr uint32_t kMaxRequests = 64;                  // of one connection; NCCL has at most 32 under way
constexpr uint32_t kEagerBytes = 16 * 1024;  // messages up to this may be sent before the receive is posted
constexpr uint32_t kEagerSlots = 16;         // that many of them at a time

enum class FrameType : uint8_t {
  kChunk = 1,   // payload: `length` bytes of a message
  kState = 2,   // receiver -> sender: HeldState
  kFence = 3,   // sender -> receiver: lane `lane` up to `epoch` is dead, report what you hold
  kFenced = 4,  // receiver -> sender: HeldState after lane `lane` up to `epoch` was closed
  kPing = 5,    // both ways: answer with `stamp`
  kPong = 6,
  kBye = 7,  // this end closes the connection in good order; from a receiver with its last HeldState
};

enum FrameFlags : uint8_t {
  kFlagFleetStamp = 1,  // stamp is fleet time; otherwise it means something only to its sender
  kFlagPayloadCrc = 2,  // kChunk: payload_crc holds
  kFlagEarly = 4,       // kChunk: sent before its receive was known to be posted
  kFlagNoStamp = 8,     // kChunk: stamp holds nothing
};

// What the receiver reports in a kState of the last chunk that has arrived: how long it took, from the sender's stamp
// to the receiver's clock. Between two hosts' own clocks only changes of it mean something.
enum DelayOf : uint32_t { kDelayNone = 0, kDelayFleet = 1, kDelayOwnClocks = 2 };

struct FrameHeader {
  uint16_t magic = kFrameMagic;
  FrameType type = FrameType::kChunk;
  uint8_t flags = 0;
  uint32_t length = 0;   // bytes that follow the header
  uint64_t chunk = 0;    // kChunk: running number; kPing: mask of lanes that the pinging end has disabled
  uint32_t message = 0;  // kChunk: low 32 bits of the message number; kFence(d): epoch; kState: DelayOf
  uint32_t message_bytes = 0;  // kChunk: size of the whole message; kFence(d): reason
  uint32_t offset = 0;         // kChunk: place in the message; kFence(d), kState: lane
  uint32_t tag = 0;            // kChunk: tag given to isend
  int64_t stamp = 0;           // when the frame was given to the transport, ns; kState: the delay
  uint32_t payload_crc = 0;    // CRC-32C of the payload
  uint32_t crc = 0;            // CRC-32C of the header up to here and, but for kChunk, of what follows it
};
static_assert(sizeof(FrameHeader) == 48, "wire format");

// What a receiver holds and allows. Everything in it only grows (but `disabled`, which is desired state).
struct HeldState {
  uint64_t base = 0;                               // all chunks below are held
  uint64_t bitmap[(kChunkWindow + 63) / 64] = {};  // bit i: chunk base + i is held
  uint64_t posted = 0;                             // receives posted so far: messages below may be sent
  uint64_t disabled = 0;                           // lanes that the receiver wants out of service
  // By lane: its incarnations up to this epoch are closed, and were so when `base` and `bitmap` were taken.
  uint32_t closed[kMaxLanes] = {};
};
static_assert(kChunkWindow != 256 || sizeof(HeldState) == 120, "wire format");

constexpr uint32_t kMaxChunkBytes = 1024 * 1024;

// True if the header can be the start of a frame of a peer that keeps to the protocol.
inline bool frame_plausible(const FrameHeader& header) {
  if (header.magic != kFrameMagic) return false;
  switch (header.type) {
    case FrameType::kChunk:
      return header.length <= kMaxChunkBytes && header.message_bytes <= (1u << 30) &&
             header.offset <= header.message_bytes && header.length <= header.message_bytes - header.offset;
    case FrameType::kState:
      return header.length == sizeof(HeldState);
    case FrameType::kFenced:
      return header.length == sizeof(HeldState) && header.offset < kMaxLanes;
    case FrameType::kFence:
      return header.length == 0 && header.offset < kMaxLanes;
    case FrameType::kPing:
    case FrameType::kPong:
      return header.length == 0;
    case FrameType::kBye:
      return header.length == 0 || header.length == sizeof(HeldState);
  }
  return false;
}

// The first bytes on a fresh lane, from the side that connects.
enum class HelloKind : uint8_t {
  kLane = 1,
  kProbe = 2,
  kWatch = 3,  // the connection stays and carries nothing: its end in order is that of the process
};
enum class HelloStatus : uint8_t {
  kOk = 0,
  kUnknown = 1,   // no such listener or connection: the peer has given it up
  kStale = 2,     // a newer epoch of this lane is known
  kDisabled = 3,  // the lane is out of service at the peer by command
  kVersion = 4,
  kBusy = 5,    // descriptors are scarce here, and the connection has another lane: later
  kClosed = 6,  // the receiver has closed the connection in good order; `held` is its last state
};

enum HelloFlags : uint8_t {
  kHelloLastResort = 1,  // no other lane is left: accept it even if it is disabled
  kHelloRepath = 2,  // the older incarnation of the lane works; this one is to take its place on another path
  kHelloSpare = 4,   // a TCP lane beside queue pairs, for the time when none of them is up
};

constexpr uint32_t kMaxPadding = 128 * 1024;
constexpr uint64_t kHelloMagic = UINT64_C(0x314f4c4c48505046);  // "FPPHLLO1"

struct WireNic {
  char device[31] = {};
  uint8_t spare_use = 0;     // SpareUse
  uint8_t address[16] = {};  // IPv6, or IPv4 mapped
};

// What the ends of a lane exchange besides: queue pair number, addresses, keys. Lane types define it.
constexpr size_t kSetupBytes = 128;

struct ProcessIdentity {
  uint64_t id[2] = {};  // random, chosen when the plugin is loaded
  uint32_t pid = 0;
  uint32_t rank = UINT32_MAX;
  char host[96] = {};
};

struct Hello {
  uint64_t magic = kHelloMagic;
  uint32_t version = kWireVersion;
  HelloKind kind = HelloKind::kLane;
  uint8_t flags = 0;         // HelloFlags
  uint16_t listen_port = 0;  // of the sender's process, for probes back
  uint64_t token[2] = {};    // of the listener (kLane) or of the process
  uint64_t connection = 0;
  uint32_t lane = 0;
  uint32_t lanes = 0;  // of the connection
  uint32_t epoch = 0;
  uint32_t primary_device = 0;  // index in nics: the NIC that NCCL chose at the sender
  ProcessIdentity process;
  uint32_t device = 0;  // index in nics: local NIC of this lane
  uint32_t nic_count = 0;
  WireNic nics[kMaxNics];
  uint8_t setup[kSetupBytes] = {};
  uint32_t padding = 0;  // bytes that follow: full packets, so that a path that loses those is not taken
  uint32_t crc = 0;      // CRC-32C of all before
};

struct HelloReply {
  uint64_t magic = kHelloMagic;
  uint32_t version = kWireVersion;
  HelloStatus status = HelloStatus::kOk;
  uint8_t reserved[3] = {};
  uint32_t epoch = 0;
  uint32_t device = 0;  // index in nics: NIC of this lane at the receiver
  HeldState held;
  ProcessIdentity process;
  uint32_t nic_count = 0;
  uint32_t crc = 0;  // CRC-32C of all but itself
  WireNic nics[kMaxNics];
  uint8_t setup[kSetupBytes] = {};
};

// A fixed char array that a peer has sent may lack its terminator.
template <size_t N>
inline void terminate(char (&text)[N]) {
  text[N - 1] = '\0';
}

inline bool hello_plausible(Hello* hello) {
  if (hello->magic != kHelloMagic || hello->nic_count > kMaxNics) return false;
  if (hello->kind < HelloKind::kLane || hello->kind > HelloKind::kWatch) return false;
  if (hello->lane >= kMaxLanes || hello->lanes > kMaxLanes ||
      hello->lane >= (hello->lanes ? hello->lanes : 1))
    return false;
  if (hello->padding > kMaxPadding) return false;
  if (hello->nic_count == 0 || hello->device >= hello->nic_count || hello->primary_device >= hello->nic_count)
    return false;
  terminate(hello->process.host);
  for (auto& nic : hello->nics) terminate(nic.device);
  return true;
}

inline bool reply_plausible(HelloReply* reply) {
  if (reply->magic != kHelloMagic || reply->nic_count > kMaxNics || reply->nic_count == 0) return false;
  if (reply->device >= reply->nic_count) return false;
  terminate(reply->process.host);
  for (auto& nic : reply->nics) terminate(nic.device);
  return true;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_WIRE_H_
