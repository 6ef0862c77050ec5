#include "channel_table.h"

#include <algorithm>
#include <cstring>

namespace fabricpulse {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;

}  // namespace

ChannelTable::ChannelTable(std::uint32_t salt, const SipKey& secret)
    : salt_(salt), secret_(secret), resets_of_(kSources, 0) {}

std::uint32_t ChannelTable::open(const SipKey& key) {
  std::uint32_t number;
  if (free_.empty()) {
    number = static_cast<std::uint32_t>(channels_.size());
    channels_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
  }
  channels_[number] = Channel();
  channels_[number].key = key;
  channels_[number].open = true;
  return number;
}

void ChannelTable::close(std::uint32_t number) {
  if (number >= channels_.size() || !channels_[number].open) return;
  Channel& channel = channels_[number];
  reported_ -= channel.reports > 0;
  missing_ -= channel.expected && channel.reports == 0;
  channel = Channel();
  closed_.push_back(number);
}

void ChannelTable::take(std::vector<Arrival>* arrivals, std::vector<std::uint8_t>* edges) {
  arrivals->swap(arrivals_);
  edges->swap(edges_);
  // As much room as this time: growing by doubling would copy it all several times.
  arrivals_.clear();
  arrivals_.reserve(arrivals->size());
  edges_.clear();
  edges_.reserve(edges->size());
  free_.insert(free_.end(), closed_.begin(), closed_.end());
  closed_.clear();
  reported_ = missing_ = 0;
  for (Channel& channel : channels_) {
    // One that was opened and has not been used yet was in no solve by datagram, but will be in the next.
    channel.expected = channel.open && (channel.reports > 0 || channel.sequence == 0);
    channel.reports = 0;
    missing_ += channel.expected;
  }
}

bool ChannelTable::accept(const std::uint8_t* data, std::size_t size, const Source& from, std::int64_t now_ns,
                          std::uint8_t* reset) {
  RequestHead head;
  if (size < kMinRequest || size > kMaxDatagram) {
    ++counts.malformed;
    return false;
  }
  std::memcpy(&head, data, sizeof(head));
  const std::uint8_t part = head.part & 15, parts = (head.part >> 4) + 1;
  if (head.magic != kRequestMagic || sizeof(head) + head.edges * kEdgeSize + kTagSize > size ||
      parts > kMaxParts || part >= parts) {
    ++counts.malformed;
    return false;
  }
  const std::uint32_t number = head.channel - salt_;
  if (number >= channels_.size() || !channels_[number].open) {
    // We have been restarted, or its lease has run out: it should come by HTTP, and at once. Whoever can read
    // its sequence number off the wire could as well keep the datagram from arriving.
    ++counts.unknown;
    if (!may_reset(from, now_ns)) return false;
    std::memset(reset, 0, kResetSize);
    std::memcpy(reset, &kResetMagic, 4);
    std::memcpy(reset + 4, &head.channel, 4);
    std::memcpy(reset + 8, &head.sequence, 8);
    return true;
  }
  Channel& channel = channels_[number];
  std::uint64_t tag;
  std::memcpy(&tag, data + size - kTagSize, kTagSize);
  // No limit a source here: its address can be forged, and the true sidecar would pay for it.
  if (siphash24(channel.key, data, size - kTagSize) != tag) {
    ++counts.forged;
    return false;
  }
  const auto bit = static_cast<std::uint8_t>(1 << part);
  if (head.sequence < channel.sequence || (head.sequence == channel.sequence && !(channel.awaited & bit))) {
    ++counts.replayed;
    return false;
  }
  if (head.sequence > channel.sequence) {
    counts.incomplete += channel.awaited != 0;
    channel.sequence = head.sequence;
    channel.awaited = static_cast<std::uint8_t>((1 << parts) - 1);
    channel.longest = 0;
    channel.begun = {};
  }
  channel.awaited &= static_cast<std::uint8_t>(~bit);
  channel.longest = std::max(channel.longest, static_cast<std::uint16_t>(size));
  const std::uint8_t* const edges = data + sizeof(head);
  const std::uint8_t* const end = edges + head.edges * kEdgeSize;
  if (channel.awaited) {
    channel.begun.insert(channel.begun.end(), edges, end);
    return false;
  }
  // No memory stays: of 50,000 channels it would be more than the reports themselves.
  const std::vector<std::uint8_t> begun = std::move(channel.begun);
  channel.begun = {};
  if (channel.reports == kMaxReports) {
    ++counts.surplus;
    return false;
  }
  ++channel.reports;
  channel.room = channel.longest;
  channel.from = from;
  if (channel.reports == 1) {
    ++reported_;
    missing_ -= channel.expected;
  }
  ++counts.taken;
  head.channel = number;
  const std::size_t before = begun.size() / kEdgeSize;
  arrivals_.push_back({head, now_ns, static_cast<std::uint32_t>(before + head.edges), 0});
  edges_.insert(edges_.end(), begun.begin(), begun.end());
  edges_.insert(edges_.end(), edges, end);
  return false;
}

bool ChannelTable::may_reset(const Source& from, std::int64_t now_ns) {
  const std::int64_t second = now_ns / kSecondNs;
  if (second != reset_second_) {
    reset_second_ = second;
    resets_ = 0;
    std::fill(resets_of_.begin(), resets_of_.end(), std::uint8_t{0});
  }
  if (resets_ >= kResetsPerSecond) return false;
  // The address without its port, which a sender may change with each datagram; of IPv6 the /64, all of which
  // one host may own.
  std::uint8_t key[8] = {};
  if (from.address.ss_family == AF_INET6) {
    std::memcpy(key, reinterpret_cast<const sockaddr_in6&>(from.address).sin6_addr.s6_addr, 8);
  } else {
    std::memcpy(key, &reinterpret_cast<const sockaddr_in&>(from.address).sin_addr, 4);
  }
  std::uint8_t& count = resets_of_[siphash24(secret_, key, sizeof(key)) % kSources];
  if (count >= kResetsPerSource) return false;
  ++count;
  ++resets_;
  return true;
}

std::size_t ChannelTable::answer(ReplyHead head, const std::uint8_t* residuals, std::size_t residual_bytes,
                                 const std::string& name, std::uint8_t* data, Source* to) const {
  if (head.channel >= channels_.size()) return 0;
  const Channel& channel = channels_[head.channel];
  std::size_t size = sizeof(head) + residual_bytes;
  // A channel that is open and has never been used has no room.
  if (!channel.open || size + kTagSize > channel.room) return 0;
  head.magic = kReplyMagic;
  head.channel += salt_;
  head.residuals = static_cast<std::uint16_t>(residual_bytes / kResidualSize);
  std::memcpy(data, &head, sizeof(head));
  if (residual_bytes) std::memcpy(data + sizeof(head), residuals, residual_bytes);
  if (size + name.size() + kTagSize <= channel.room) {
    std::memcpy(data + size, name.data(), name.size());
    size += name.size();
  }
  const std::uint64_t tag = siphash24(channel.key, data, size);
  std::memcpy(data + size, &tag, kTagSize);
  *to = channel.from;
  return size + kTagSize;
}

}  // namespace fabricpulse
