// libFuzzer harness of everything that a stranger's packet can reach: parser, session, train tables of one
// edge end.
//
// The input is a list of packets (one length byte, then that many bytes). The harness knows the key, so that
// it can do what no stranger can: sign. Its first byte says what is done with each packet: as it is (must
// never be accepted, because the fuzzer does not know the key), or signed anew (an authentic packet of a
// broken member: anything may be in it, and nothing of it may break us).
//
// Without libFuzzer (-DSTANDALONE) it mutates the seed files by itself: probe_fuzz RUNS FILE...
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "session.h"
#include "wire.h"

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

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<FleetKey> keys = {make_fleet_key(kKey)};
  Session session;
  std::uint32_t our_train = 1;
  while (size > 1) {
    const bool member = data[0] & 1;
    std::size_t length = data[1];
    data += 2, size -= 2;
    if (length > size) length = size;
    // A heap block of the exact size: one byte read past it is found.
    std::vector<std::uint8_t> bytes(data, data + length);
    data += length, size -= length;
    if (member) {
      bytes.resize(kPacketSize);
      sign(bytes.data());
    }
    Packet packet;
    const Decoded decoded = decode_packet(bytes.data(), bytes.size(), keys, &packet);
    if (!member) {
      // 64 bits of MAC: not by chance.
      if (decoded == Decoded::kOk) abort();
      continue;
    }
    if (decoded == Decoded::kWrongFleet || decoded == Decoded::kBadMac) abort();
    if (decoded != Decoded::kOk) continue;
    // What is believed fits the tables that it indexes.
    if (packet.position >= kTrain || packet.path >= kMaxPaths || packet.sent.path >= kMaxPaths ||
        packet.heard.path >= kMaxPaths || packet.paths > kMaxPaths || packet.train == 0) {
      abort();
    }
    ++our_train;
    if (session.admit(packet, 7, our_train) == Admitted::kFresh) {
      if (session.admit(packet, 7, our_train) == Admitted::kFresh) abort();  // twice
    }
    // Encoding what was decoded and decoding it again changes nothing.
    std::uint8_t again[kPacketSize];
    encode_packet(packet, keys[0], again);
    Packet copy;
    if (decode_packet(again, sizeof(again), keys, &copy) != Decoded::kOk) abort();
    if (copy.train != packet.train || copy.epoch != packet.epoch || copy.heard_epoch != packet.heard_epoch ||
        copy.correction_ns != packet.correction_ns) {
      abort();
    }
    std::uint32_t epoch, train;
    session.candidate(our_train, &epoch, &train);
  }
  return 0;
}

#ifdef STANDALONE
int main(int argc, char** argv) {
  std::vector<std::vector<std::uint8_t>> seeds;
  for (int i = 2; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (argc < 3) return 2;
  std::mt19937_64 random(1);
  for (long run = std::stol(argv[1]); run > 0; --run) {
    std::vector<std::uint8_t> input = seeds[random() % seeds.size()];
    for (std::uint64_t edits = random() % 16; edits > 0 && !input.empty(); --edits) {
      input[random() % input.size()] = static_cast<std::uint8_t>(random());
      if (random() % 8 == 0) input.resize(random() % (input.size() + 1));
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
}
#endif
