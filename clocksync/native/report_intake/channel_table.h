// What reports of sidecars look like as datagrams, and who may send them: channels, their keys, and what has
// come on them since the last solve. No sockets, no clock and no thread: those are report_intake.h.
//
// A datagram is little-endian: a head, records of 40 bytes (requests) or 8 bytes (replies), padding or a
// name, and a SipHash-2-4 of all of it under the key of its channel. A channel is what one sidecar was given
// in reply to a report by HTTP; its sequence numbers only grow, so that nothing counts twice. A reply is
// never longer than its request, and only what carries a valid tag is answered: with one exception, a reset
// of 24 bytes for a channel that is not known, of which each source and all of them get so many a second.
//
// A report of more edges than one datagram holds comes in parts: several datagrams with the same head and
// sequence number, each with its tag, its place among them and its share of the edges. It counts once all of
// them are there; what a newer sequence number overtakes is dropped. One reply answers all of a report.
#ifndef FABRICPULSE_CLOCKSYNC_CHANNEL_TABLE_H_
#define FABRICPULSE_CLOCKSYNC_CHANNEL_TABLE_H_

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fabricpulse/siphash.h"

namespace fabricpulse {

constexpr std::uint32_t kRequestMagic = 0x31525046;  // "FPR1"
constexpr std::uint32_t kReplyMagic = 0x31415046;    // "FPA1"
constexpr std::uint32_t kResetMagic = 0x31585046;    // "FPX1"
constexpr std::size_t kEdgeSize = 40, kResidualSize = 8, kTagSize = 8, kResetSize = 24;
// What an Ethernet frame of 1,500 bytes carries, with room for tunnels.
constexpr std::size_t kMaxDatagram = 1432;
// So that a reply fits even where no edge is reported.
constexpr std::size_t kMinRequest = 192;
// Parts of a report: so many that one reply, as long as the longest of them, holds the residuals on all edges
// and the longest host name.
constexpr std::uint8_t kMaxParts = 4;
// Reports of one sidecar that are kept for one solve.
constexpr std::uint8_t kMaxReports = 4;
// Resets a second to all, and to the sources that share a place in a table of so many: a lab with some
// sidecars on one address, and 50,000 hosts after a restart, get theirs at once.
constexpr std::uint32_t kResetsPerSecond = 100'000, kResetsPerSource = 16;
constexpr std::size_t kSources = 1 << 16;

struct RequestHead {
  std::uint32_t magic, channel;
  std::uint64_t sequence;
  std::int64_t host_ns;
  std::int64_t ref_ns, correction_ns, rate_ppt, bound_ns;
  std::int64_t anchor_ns, anchor_bound_ns;
  std::uint32_t steps, generation;
  std::uint8_t flags, rank;
  // Edges of this datagram, and which part of the report it is: its place, from 0, and 16 times how many come
  // beside it.
  std::uint8_t edges, part;
  std::uint32_t quorum_hosts;
  std::uint64_t quorum_s, quorum_root;
};
static_assert(sizeof(RequestHead) == 104, "no padding");

struct ReplyHead {
  std::uint32_t magic, channel;
  std::uint64_t sequence, solve;
  std::int64_t ref_ns, correction_ns, rate_ppt, bound_ns;
  std::uint32_t generation;
  std::uint16_t residuals;
  std::uint8_t flags, suspect;
  std::uint32_t quorum_s, drift_ppb, quorum_hosts, estimated_error_ns;
};
static_assert(sizeof(ReplyHead) == 80, "no padding");

// A report as it is handed over: the head of the part that came last, when that was taken from the socket,
// and the edges of all parts.
struct Arrival {
  RequestHead head;
  std::int64_t received_ns;  // CLOCK_MONOTONIC
  std::uint32_t edges, reserved;
};
static_assert(sizeof(Arrival) == 120, "no padding");

// taken : reports, all other requests: datagrams. incomplete : reports of which a part had not come when the
// next one did.
struct IntakeCounts {
  std::uint64_t taken = 0, malformed = 0, unknown = 0, forged = 0, replayed = 0, incomplete = 0, surplus = 0,
                overflowed = 0, answered = 0, unsendable = 0;
};

// Where a datagram came from, and where its answer goes.
struct Source {
  int socket = -1;
  sockaddr_storage address{};
  socklen_t size = 0;
};

// Not safe against several threads: its owner has the lock.
class ChannelTable {
 public:
  // salt : added to the number of a channel on the wire, another at each start: one of an earlier coordinator
  // is then seen to be unknown. secret : so that a sender cannot choose sources that share a place.
  ChannelTable(std::uint32_t salt, const SipKey& secret);

  // The number of a new channel. A report on it is waited for from the next take() on.
  std::uint32_t open(const SipKey& key);
  void close(std::uint32_t number);

  // A datagram of `size` bytes has come. True when `reset`, of kResetSize, is to be sent back.
  bool accept(const std::uint8_t* data, std::size_t size, const Source& from, std::int64_t now_ns,
              std::uint8_t* reset);

  // Reports since the last call, in the order of arrival, and their edge records behind each other.
  void take(std::vector<Arrival>* arrivals, std::vector<std::uint8_t>* edges);

  // Writes the answer to the last report of a channel to `data`, of kMaxDatagram bytes. head : all but magic
  // and residuals, `channel` as a number. name : goes to its end if there is room. Returns its size, and where
  // to send it; 0 when the channel is no longer there, or the answer were longer than the report.
  std::size_t answer(ReplyHead head, const std::uint8_t* residuals, std::size_t residual_bytes,
                     const std::string& name, std::uint8_t* data, Source* to) const;

  // Channels that have reported since the last take(), and channels that should have: they had before it.
  std::pair<std::size_t, std::size_t> waiting() const { return {reported_, missing_}; }

  std::uint32_t salt() const { return salt_; }

  IntakeCounts counts;

 private:
  struct Channel {
    SipKey key{};
    bool open = false, expected = false;
    std::uint8_t reports = 0;  // since the last take()
    std::uint8_t awaited = 0;  // parts of the report `sequence` that have not come yet, a bit each
    std::uint16_t room = 0;    // bytes of the longest datagram of its last report, and of the one that comes
    std::uint16_t longest = 0;
    std::uint64_t sequence = 0;
    std::vector<std::uint8_t> begun;  // edges of the parts that have
    Source from;
  };

  bool may_reset(const Source& from, std::int64_t now_ns);

  std::uint32_t salt_;
  SipKey secret_;
  std::vector<Channel> channels_;
  // A number that was closed is given out again after the next take(): reports may wait that came under it.
  std::vector<std::uint32_t> free_, closed_;
  std::vector<Arrival> arrivals_;
  std::vector<std::uint8_t> edges_;
  std::size_t reported_ = 0, missing_ = 0;
  // Resets of this second.
  std::int64_t reset_second_ = -1;
  std::uint32_t resets_ = 0;
  std::vector<std::uint8_t> resets_of_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_CLOCKSYNC_CHANNEL_TABLE_H_
