// libFuzzer harness of everything that a datagram can reach in a coordinator's channel table, and of its
// answers.
//
// The input is a list of steps: one byte that says which, one for the channel or the source, two of length,
// then that many bytes:
//   0  a datagram as it is, of a stranger: never taken, because the fuzzer does not know the keys
//   1  a datagram signed anew on one of our channels: what a broken sidecar may send. Instead of the sequence
//      number in the bytes with the next one (bit 3 of the first byte) or the last one (bit 4): another part
//   2  a channel is opened; 3  one is closed
//   4  what has come is taken and answered, with as many residuals and as long a name as the bytes say
//   5  a datagram on a channel that is not there; a second passes when bit 3 is set
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "channel_table.h"
#include "fuzz_standalone.h"

using namespace fabricpulse;

namespace {

void require(bool condition) {
  if (!condition) abort();
}

constexpr std::uint32_t kSalt = 0xfffffff0;  // so that numbers on the wire wrap
constexpr std::size_t kMostChannels = 64;

struct Known {
  SipKey key;
  std::uint64_t sequence = 0;
  std::size_t reports = 0, room = 0;
  // Of the report `sequence`: parts that are missing, and what is there.
  std::set<unsigned> missing;
  std::size_t edges = 0, longest = 0;
};

// A table and what it must know.
class Coordinator {
 public:
  void stranger(std::vector<std::uint8_t> bytes, std::uint8_t source) {
    // libFuzzer sees what a tag is compared with, and puts it there.
    if (signed_by_a_member(bytes)) bytes.back() ^= 1;
    const IntakeCounts before = table_.counts;
    const auto waiting = table_.waiting();
    send(bytes, source);
    require(table_.counts.taken == before.taken && table_.counts.replayed == before.replayed);
    require(table_.waiting() == waiting);
  }

  void member(std::vector<std::uint8_t> bytes, std::uint8_t which, bool next, bool same) {
    if (open_.empty()) return;
    auto found = open_.begin();
    std::advance(found, which % open_.size());
    auto& [number, known] = *found;
    if (bytes.size() < kMinRequest) bytes.resize(kMinRequest);
    const std::uint32_t magic = kRequestMagic, channel = number + kSalt;
    std::memcpy(bytes.data(), &magic, 4);
    std::memcpy(bytes.data() + 4, &channel, 4);
    if (next || same) {
      const std::uint64_t sequence = known.sequence + (next ? 1 : 0);
      std::memcpy(bytes.data() + 8, &sequence, 8);
    }
    const std::size_t signed_size = bytes.size() - kTagSize;
    const std::uint64_t tag = siphash24(known.key, bytes.data(), signed_size);
    std::memcpy(bytes.data() + signed_size, &tag, kTagSize);
    RequestHead head;
    std::memcpy(&head, bytes.data(), sizeof(head));
    const IntakeCounts before = table_.counts;
    require(!send(bytes, which));
    require(table_.counts.forged == before.forged && table_.counts.unknown == before.unknown);
    const unsigned part = head.part % 16, parts = head.part / 16 + 1;
    const bool well_formed = bytes.size() <= kMaxDatagram &&
                             sizeof(head) + head.edges * kEdgeSize + kTagSize <= bytes.size() &&
                             parts <= kMaxParts && part < parts;
    require((table_.counts.malformed == before.malformed) == well_formed);
    if (!well_formed) return;
    const bool newer = head.sequence > known.sequence;
    const bool wanted = newer || (head.sequence == known.sequence && known.missing.count(part));
    require((table_.counts.replayed == before.replayed) == wanted);
    if (!wanted) return;
    require(table_.counts.incomplete == before.incomplete + (newer && !known.missing.empty()));
    if (newer) {
      known.sequence = head.sequence;
      known.missing.clear();
      for (unsigned k = 0; k < parts; ++k) known.missing.insert(k);
      known.edges = known.longest = 0;
    }
    known.missing.erase(part);
    known.edges += head.edges;
    known.longest = std::max(known.longest, bytes.size());
    const bool taken = table_.counts.taken > before.taken;
    require(taken == (known.missing.empty() && known.reports < kMaxReports));
    require((table_.counts.surplus > before.surplus) == (known.missing.empty() && !taken));
    if (taken) {
      ++known.reports;
      known.room = known.longest;
      edges_ += known.edges;
    }
    send(bytes, which);  // twice: nothing counts
    require(table_.counts.replayed == before.replayed + 1);
  }

  void open(std::uint8_t key) {
    if (open_.size() == kMostChannels) return;
    Known known;
    known.key.fill(key);
    const std::uint32_t number = table_.open(known.key);
    require(open_.count(number) == 0 && resting_.count(number) == 0);
    open_[number] = known;
    most_ = std::max(most_, open_.size() + resting_.size());
    require(number < most_);  // memory is bounded by what was in use at one time
  }

  void close(std::uint8_t which) {
    table_.close(which);
    if (open_.erase(which) == 0) return;
    resting_.insert(which);
  }

  void solve(const std::vector<std::uint8_t>& bytes, std::uint8_t length) {
    std::size_t reported = 0;
    for (const auto& [number, known] : open_) reported += known.reports > 0;
    require(table_.waiting().first == reported);
    std::vector<Arrival> arrivals;
    std::vector<std::uint8_t> edges;
    table_.take(&arrivals, &edges);
    std::size_t counted = 0;
    for (const Arrival& arrival : arrivals) counted += arrival.edges;
    require(edges.size() == counted * kEdgeSize && counted == edges_);
    require(table_.waiting().first == 0 && table_.waiting().second <= open_.size());
    edges_ = 0;
    resting_.clear();
    const std::string name(length, 'n');
    for (const Arrival& arrival : arrivals) answer(arrival.head, bytes, name);
    for (auto& [number, known] : open_) known.reports = 0;
  }

  bool unknown(std::vector<std::uint8_t> bytes, std::uint8_t source, bool later) {
    if (later) now_ += 1'000'000'000, resets_.clear();
    if (bytes.size() < kMinRequest) bytes.resize(kMinRequest);
    const std::uint32_t magic = kRequestMagic, channel = kSalt - 1;
    std::memcpy(bytes.data(), &magic, 4);
    std::memcpy(bytes.data() + 4, &channel, 4);
    return send(bytes, source);
  }

 private:
  bool signed_by_a_member(const std::vector<std::uint8_t>& bytes) const {
    if (bytes.size() < kMinRequest) return false;
    std::uint32_t channel;
    std::memcpy(&channel, bytes.data() + 4, 4);
    const auto known = open_.find(channel - kSalt);
    if (known == open_.end()) return false;
    std::uint64_t tag;
    std::memcpy(&tag, bytes.data() + bytes.size() - kTagSize, kTagSize);
    return tag == siphash24(known->second.key, bytes.data(), bytes.size() - kTagSize);
  }

  bool send(const std::vector<std::uint8_t>& bytes, std::uint8_t source) {
    Source from;
    from.socket = 0;
    from.size = sizeof(sockaddr_in);
    auto& address = reinterpret_cast<sockaddr_in&>(from.address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = source;
    // A heap block of the exact size: one byte read past it, or written past the reset, is found.
    const std::unique_ptr<std::uint8_t[]> exact(new std::uint8_t[bytes.size()]);
    if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
    const std::unique_ptr<std::uint8_t[]> reset(new std::uint8_t[kResetSize]);
    const std::uint64_t unknown = table_.counts.unknown;
    const bool answered = table_.accept(exact.get(), bytes.size(), from, now_, reset.get());
    if (!answered) return false;
    require(table_.counts.unknown == unknown + 1 && bytes.size() >= kMinRequest);
    require(++resets_[source] <= kResetsPerSource);
    require(std::memcmp(reset.get() + 4, bytes.data() + 4, 12) == 0);
    return true;
  }

  void answer(const RequestHead& request, const std::vector<std::uint8_t>& residuals,
              const std::string& name) {
    ReplyHead head{};
    head.channel = request.channel;
    head.sequence = request.sequence;
    const std::unique_ptr<std::uint8_t[]> data(new std::uint8_t[kMaxDatagram]);
    Source to;
    const std::size_t whole = residuals.size() / kResidualSize * kResidualSize;
    const std::size_t size = table_.answer(head, residuals.data(), whole, name, data.get(), &to);
    const auto known = open_.find(request.channel);
    if (known == open_.end()) {
      require(size == 0);
      return;
    }
    const bool fits = sizeof(head) + whole + kTagSize <= known->second.room;
    require((size > 0) == fits && size <= known->second.room);
    if (!fits) return;
    std::uint64_t tag;
    std::memcpy(&tag, data.get() + size - kTagSize, kTagSize);
    require(tag == siphash24(known->second.key, data.get(), size - kTagSize));
    const std::size_t rest = size - sizeof(head) - whole - kTagSize;
    require(rest == 0 || rest == name.size());
  }

  ChannelTable table_{kSalt, SipKey{1, 2, 3}};
  std::map<std::uint32_t, Known> open_;
  std::set<std::uint32_t> resting_;  // closed since the last take()
  std::map<std::uint8_t, std::uint32_t> resets_;
  std::size_t edges_ = 0, most_ = 0;  // most_ : channels that were open or resting at one time
  std::int64_t now_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Coordinator coordinator;
  while (size >= 4) {
    const std::uint8_t what = data[0], which = data[1];
    std::size_t length = data[2] | data[3] << 8;
    data += 4, size -= 4;
    if (length > size) length = size;
    const std::vector<std::uint8_t> bytes(data, data + length);
    data += length, size -= length;
    switch (what & 7) {
      case 0:
        coordinator.stranger(bytes, which);
        break;
      case 1:
        coordinator.member(bytes, which, what & 8, what & 16);
        break;
      case 2:
        coordinator.open(which);
        break;
      case 3:
        coordinator.close(which);
        break;
      case 4:
        coordinator.solve(bytes, which);
        break;
      default:
        coordinator.unknown(bytes, which, what & 8);
    }
  }
  return 0;
}
