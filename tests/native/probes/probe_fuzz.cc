// libFuzzer harness of everything that a packet can reach: parser, session, and behind them the train tables
// of one edge end.
//
// The input is a list of steps (one byte that says which, one length byte, then that many bytes):
//   bit 7 of the first byte: the packet of step 0 or 1 is a size probe; bit 2 of step 1: over IPv6; bit 3: it says its
//   true size
//   0  a packet as it is: never accepted, because the fuzzer does not know the key
//   1  a packet signed anew: the authentic packet of a broken member. Anything may be in it, in any order,
//   and
//      nothing of it may break us. Bit 2 of the first byte: with an RX stamp; bit 3: of the NIC's clock
//   2  we send a train; bit 2: nothing of it leaves the host
//   3  a TX stamp: which train back, which packet, how long after the send; bit 2: of the NIC's clock; bit 3:
//      the clock was stepped
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "evidence/edge_trains.h"
#include "fuzz_standalone.h"
#include "packets/session.h"
#include "packets/size_packet.h"
#include "packets/wire.h"

using namespace fabricpulse;

namespace {

const SipKey kKey = {0x13, 0x8f, 0x22, 0xa1, 0x90, 0x5c, 0xd3, 0x47,
                     0x6e, 0xb8, 0x01, 0xfa, 0x3d, 0x74, 0xc6, 0x59};

void sign(std::uint8_t* packet) {
  const FleetKey key = make_fleet_key(kKey);
  const std::uint32_t magic = kWireMagic;
  std::memcpy(packet, &magic, 4);
  packet[4] = kWireVersion;
  std::memcpy(packet + 8, &key.id, 4);
  const std::uint64_t mac = siphash24(kKey, packet, kPacketSize - 8);
  std::memcpy(packet + kPacketSize - 8, &mac, 8);
}

void require(bool condition) {
  if (!condition) abort();
}

constexpr std::uint32_t kOurEpoch = 7;

// One end of an edge as the engine drives it, without sockets and clocks.
class EdgeEnd {
 public:
  void stranger(const std::vector<std::uint8_t>& bytes) {
    Packet packet;
    // 64 bits of MAC: not by chance.
    require(decode_packet(bytes.data(), bytes.size(), keys_, &packet) != Decoded::kOk);
  }

  void member(std::vector<std::uint8_t> bytes, bool stamped, bool hardware) {
    bytes.resize(kPacketSize);
    sign(bytes.data());
    Packet packet;
    const Decoded decoded = decode_packet(bytes.data(), bytes.size(), keys_, &packet);
    require(decoded != Decoded::kWrongFleet && decoded != Decoded::kBadMac);
    if (decoded != Decoded::kOk) return;
    check_fits(packet);
    check_round_trip(packet);
    now_ += 1 + bytes[0];
    if (session_.admit(packet, kOurEpoch, trains_.last_sent()) != Admitted::kFresh) return;
    require(session_.admit(packet, kOurEpoch, trains_.last_sent()) != Admitted::kFresh);  // twice
    if (session_.take_restarted()) {
      trains_.restart();
      highest_ = 0;
    }
    if (packet.train > highest_) highest_ = packet.train;

    const std::int64_t settled = now_ + 1'000'000'000;
    const std::uint64_t lost = trains_.lost();
    const TrainStamps newest = trains_.reception_report(0, settled);
    trains_.receive(packet, stamped ? now_ : 0, hardware ? 640 : 0, now_);
    require(trains_.lost() >= lost);
    if (highest_ - packet.train >= EdgeTrains::kReceivedTrains) {
      // Too late: it does not push a newer train out of the table.
      const TrainStamps same = trains_.reception_report(0, settled);
      require(same.train == newest.train && same.valid == newest.valid);
    }
    const ReceivedTrain* received = trains_.match_sent(packet.sent);
    if (received != nullptr) {
      require(received->train == packet.sent.train && received->path == packet.sent.path);
      require((received->valid & ~received->got) == 0);
      require(trains_.match_sent(packet.sent) == nullptr);  // a sample is written once
    }
    const SentTrain* sent = trains_.match_reception(packet.rx);
    if (sent != nullptr) {
      require(sent->train == packet.rx.train && sent->train <= trains_.last_sent());
      require(trains_.match_reception(packet.rx) == nullptr);
    }
    for (int i = 0; i < kMaxPaths; ++i) require(trains_.path(i).lost <= trains_.path(i).expected);
  }

  void size_of_stranger(const std::vector<std::uint8_t>& bytes) {
    SizePacket packet;
    for (const bool v6 : {false, true})
      require(decode_size_packet(bytes.data(), bytes.size(), v6, keys_, &packet) != Decoded::kOk);
  }

  void size_of_member(std::vector<std::uint8_t> bytes, bool v6, bool true_size) {
    if (bytes.size() < kSizePacketHeader) bytes.resize(kSizePacketHeader);
    const std::uint16_t size = static_cast<std::uint16_t>(bytes.size() + (v6 ? kHeaders6 : kHeaders4));
    std::memcpy(bytes.data(), "FPSZ", 4);
    bytes[4] = 1;
    if (true_size) std::memcpy(&bytes[6], &size, 2);
    std::memcpy(&bytes[8], &keys_[0].id, 4);
    const std::uint64_t mac = siphash24(kKey, bytes.data(), 40);
    std::memcpy(&bytes[40], &mac, 8);
    SizePacket packet;
    const Decoded decoded = decode_size_packet(bytes.data(), bytes.size(), v6, keys_, &packet);
    require(decoded == Decoded::kOk || decoded == Decoded::kMalformed);
    if (decoded != Decoded::kOk) return;
    require(packet.path < kMaxPaths && packet.train != 0 && packet.size == size);
    std::uint8_t copy[kSizePacketHeader];
    encode_size_packet(packet, keys_[0], copy);
    require(std::memcmp(copy, bytes.data(), 36) == 0);
    trains_.receive_size(packet.path, packet.train, packet.size);
    SizeLoss sum;
    trains_.add_size_loss(&sum);
    trains_.set_size_loss(sum);
    for (int i = 0; i < kMaxPaths; ++i) {
      const double most = sum.most(static_cast<std::size_t>(i) % kMostSizes);
      require(most >= 0 && most <= 2);  // no NaN
      trains_.black_hole(i);
    }
  }

  void send(std::uint8_t paths, std::uint8_t sweep, bool leaves) {
    now_ += 20'000'000;
    Packet packet;
    packet.paths = static_cast<std::uint8_t>(1 + paths % kMaxPaths);
    packet.sweep = sweep;
    packet.epoch = kOurEpoch;
    const std::uint32_t before = trains_.last_sent();
    packet.train = trains_.begin(packet.paths, packet.sweep, now_, now_);
    packet.path = path_of_train(packet.train, packet.paths, packet.sweep);
    require(packet.train == before + 1);
    for (int position = 0; position < kTrain; ++position) {
      packet.position = static_cast<std::uint8_t>(position);
      packet.sent = trains_.sent_report(position);
      packet.rx = trains_.reception_report(position, now_);
      require(packet.sent.train < packet.train);
      check_round_trip(packet);  // whatever the tables hold, the peer can read it
    }
    if (leaves) return;
    trains_.abandon();
    require(trains_.last_sent() == before);
  }

  void stamp(std::uint8_t back, std::uint8_t position, std::int32_t after_ns, bool hardware) {
    const std::uint32_t train = trains_.last_sent() - back;
    const std::int64_t ns = now_ + after_ns;
    if (!trains_.stamp_sent(train, position % kTrain, ns, ns, hardware ? 640 : 0)) return;
    require(back < EdgeTrains::kSentTrains);
    require(after_ns <= 1'000'000'000);
  }

  void step_clock() { trains_.forget_stamps(); }

 private:
  // What is accepted fits the tables that it indexes.
  static void check_fits(const Packet& packet) {
    require(packet.position < kTrain && packet.path < kMaxPaths && packet.sent.path < kMaxPaths &&
            packet.rx.path < kMaxPaths && packet.paths <= kMaxPaths && packet.train != 0);
  }

  // Encoding and decoding changes nothing, but for stamps too far from the first of their train.
  void check_round_trip(const Packet& packet) {
    std::uint8_t bytes[kPacketSize];
    encode_packet(packet, keys_[0], bytes);
    Packet copy;
    require(decode_packet(bytes, sizeof(bytes), keys_, &copy) == Decoded::kOk);
    require(copy.train == packet.train && copy.epoch == packet.epoch && copy.rx_epoch == packet.rx_epoch &&
            copy.correction_ns == packet.correction_ns && copy.correction_slope == packet.correction_slope);
    require((copy.sent.valid & ~packet.sent.valid) == 0 && (copy.rx.valid & ~packet.rx.valid) == 0);
    for (int i = 0; i < kTrain; ++i) {
      require(!(copy.sent.valid >> i & 1) || copy.sent.ns[i] == packet.sent.ns[i]);
      require(!(copy.rx.valid >> i & 1) || copy.rx.ns[i] == packet.rx.ns[i]);
    }
  }

  const std::vector<FleetKey> keys_ = {make_fleet_key(kKey)};
  Session session_;
  EdgeTrains trains_;
  std::uint32_t highest_ = 0;  // train of the peer
  std::int64_t now_ = 1'700'000'000'000'000'000;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  EdgeEnd end;
  while (size > 1) {
    const std::uint8_t what = data[0];
    std::size_t length = data[1];
    data += 2, size -= 2;
    if (length > size) length = size;
    // A heap block of the exact size: one byte read past it is found.
    std::vector<std::uint8_t> bytes(data, data + length);
    data += length, size -= length;
    if ((what & 0x83) == 0x80) {
      end.size_of_stranger(bytes);
      continue;
    }
    if ((what & 0x83) == 0x81) {
      end.size_of_member(bytes, what & 4, what & 8);
      continue;
    }
    if ((what & 3) == 0) {
      end.stranger(bytes);
      continue;
    }
    if ((what & 3) == 1) {
      end.member(bytes, what & 4, what & 8);
      continue;
    }
    bytes.resize(6);
    if ((what & 3) == 2) {
      end.send(bytes[0], bytes[1], !(what & 4));
      continue;
    }
    std::int32_t after;
    std::memcpy(&after, bytes.data() + 2, sizeof(after));
    end.stamp(bytes[0], bytes[1], after, what & 4);
    if (what & 8) end.step_clock();
  }
  return 0;
}
