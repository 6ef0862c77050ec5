#include "stream.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace fabricpulse::ring {
namespace {

constexpr uint8_t kOverwritten = 0xa5;

// Each byte counts, and so does its place.
uint64_t checksum(const uint8_t* data, size_t size, uint64_t start) {
  uint64_t sum = mix(start), word = 0;
  size_t at = 0;
  for (; at + 8 <= size; at += 8) {
    memcpy(&word, data + at, 8);
    sum = (sum ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    sum ^= sum >> 29;
  }
  word = size;
  memcpy(&word, data + at, size - at);
  return mix(sum ^ word ^ (uint64_t{size} << 32));
}

uint8_t small_byte(uint64_t number, size_t at) { return static_cast<uint8_t>(mix(number * 64 + at)); }

}  // namespace

Stream::Stream(const Options& options, Net* net, Rendezvous* rendezvous, Counters* counters)
    : options_(options),
      net_(net),
      rendezvous_(rendezvous),
      counters_(counters),
      before_((options.rank + options.size - 1) % options.size),
      slot_((std::max<size_t>(options.most, kHead) + 63) & ~size_t{63}) {
  random_.resize(std::max<size_t>(slot_ * 2, 1 << 20));
  for (size_t at = 0; at + 8 <= random_.size(); at += 8) {
    uint64_t word = mix(options_.seed * 7919 + options_.rank * 104729 + at);
    memcpy(random_.data() + at, &word, 8);
  }
}

void Stream::connect(std::atomic<bool>* stop) {
  links_ = connect_links(options_, net_, rendezvous_, stop);
  channels_.resize(options_.channels);
  for (uint32_t c = 0; c < options_.channels; ++c) {
    Channel& channel = channels_[c];
    channel.send_data.resize(slot_ * options_.depth);
    channel.recv_data.resize(slot_ * options_.depth * 2);
    channel.resting.resize(size_t{options_.depth} * 2);
    channel.send_requests.resize(options_.depth);
    channel.recv_requests.resize(options_.depth);
    channel.send_memory = net_->reg(links_[c].send, channel.send_data.data(), channel.send_data.size());
    channel.recv_memory = net_->reg(links_[c].recv, channel.recv_data.data(), channel.recv_data.size());
  }
}

void Stream::close() {
  for (uint32_t c = 0; c < links_.size() && c < channels_.size(); ++c) {
    if (channels_[c].send_memory != nullptr) net_->dereg(links_[c].send, channels_[c].send_memory);
    if (channels_[c].recv_memory != nullptr) net_->dereg(links_[c].recv, channels_[c].recv_memory);
  }
  close_links(&links_, net_);
}

// Both ends know it. As many small ones as large ones: evenly spread on a logarithmic scale.
uint64_t Stream::size_of(uint32_t from, uint32_t channel, uint64_t number) const {
  if (options_.least == options_.most) return options_.most;
  uint64_t dice = mix(options_.seed ^ (uint64_t{from} << 48) ^ (uint64_t{channel} << 32) ^ number);
  if (dice % 16 == 0) return options_.least;
  if (dice % 16 == 1) return options_.most;
  double low = std::log2(static_cast<double>(options_.least) + 1);
  double high = std::log2(static_cast<double>(options_.most) + 1);
  double share = static_cast<double>(dice >> 11) / 9007199254740992.0;
  auto size = static_cast<uint64_t>(std::exp2(low + (high - low) * share) - 1);
  return std::min(std::max(size, options_.least), options_.most);
}

void Stream::fill(uint32_t channel, uint64_t number, bool last, uint8_t* to, uint64_t* size) const {
  *size = size_of(options_.rank, channel, number);
  if (last) *size = std::max<uint64_t>(*size, kHead);
  if (*size < kHead) {
    for (size_t i = 0; i < *size; ++i) to[i] = small_byte(number, i);
    return;
  }
  size_t body = *size - kHead, from = mix(number ^ channel) % (random_.size() - body + 1);
  memcpy(to + kHead, random_.data() + from, body);
  Head head{number, *size, 0, last ? 1u : 0u, acknowledged_};
  head.checksum = checksum(to + kHead, body, start_of(head));
  memcpy(to, &head, kHead);
}

void Stream::verify(uint32_t channel, uint64_t number, const uint8_t* data, uint64_t size, bool* last) {
  uint64_t expected = size_of(before_, channel, number);
  if (expected < kHead && size == expected) {
    for (size_t i = 0; i < size; ++i) counters_->corrupt_bytes += data[i] != small_byte(number, i);
    return;
  }
  Head head{};
  if (size >= kHead) memcpy(&head, data, kHead);
  if (size < kHead || head.number != number) {
    // Another message in its place: one that came twice, or in place of one that is lost.
    ++counters_->double_or_lost;
    return;
  }
  *last = head.last == 1;
  if (size != head.size || (size != expected && !*last) || head.last > 1 ||
      head.checksum != checksum(data + kHead, size - kHead, start_of(head))) {
    counters_->corrupt_bytes += size;
    return;
  }
  acknowledged_ = std::max(acknowledged_, std::min(head.acknowledged, options_.size - 1) + 1);
}

void Stream::wake(Channel* channel, uint64_t number) {
  size_t& resting = channel->resting[number % (2 * uint64_t{options_.depth})];
  const uint8_t* data = landing(channel, number);
  const bool untouched =
      resting == 0 || (data[0] == kOverwritten && memcmp(data, data + 1, resting - 1) == 0);
  counters_->late_writes += !untouched;
  resting = 0;
}

bool Stream::progress(uint32_t c, bool stop) {
  Channel& channel = channels_[c];
  uint64_t depth = options_.depth;
  bool moved = false;
  if (!channel.last_received && channel.posted < channel.received + depth) {
    uint64_t number = channel.posted;
    // Room for the last message whenever it comes, and often more than is needed, as NCCL gives.
    uint64_t room = std::max<uint64_t>(size_of(before_, c, number), kHead);
    if (number % 3 != 0) room = slot_;
    wake(&channel, number);
    void* request = net_->irecv(links_[c].recv, landing(&channel, number), room, static_cast<int>(before_),
                                channel.recv_memory);
    if (request != nullptr) {
      channel.recv_requests[number % depth] = request;
      ++channel.posted;
      moved = true;
    }
  }
  if (!channel.last_received && channel.received < channel.posted) {
    uint64_t number = channel.received;
    size_t size = 0;
    if (net_->test(channel.recv_requests[number % depth], &size)) {
      verify(c, number, landing(&channel, number), size, &channel.last_received);
      memset(landing(&channel, number), kOverwritten, size);
      channel.resting[number % (2 * depth)] = size;
      ++channel.received;
      counters_->arrived(size);
      ++counters_->rounds;
      moved = true;
    }
  }
  if (!channel.last_sent && channel.sent < channel.send_done + depth) {
    uint64_t number = channel.sent;
    uint8_t* data = channel.send_data.data() + slot_ * (number % depth);
    bool last = stop || (options_.rounds > 0 && number + 1 >= options_.rounds);
    uint64_t size = 0;
    fill(c, number, last, data, &size);
    void* request =
        net_->isend(links_[c].send, data, size, static_cast<int>(options_.rank), channel.send_memory);
    if (request != nullptr) {
      channel.send_requests[number % depth] = request;
      ++channel.sent;
      channel.last_sent = last;
      moved = true;
    }
  }
  if (channel.send_done < channel.sent) {
    size_t size = 0;
    if (net_->test(channel.send_requests[channel.send_done % depth], &size)) {
      ++channel.send_done;
      moved = true;
    }
  }
  return moved;
}

void Stream::run(std::atomic<bool>* stop) {
  uint64_t started = now_ns(), acknowledged_all_ns = 0;
  Pause pause(options_.busy, options_.poll_us);
  counters_->last_progress_ns = started;
  for (;;) {
    uint64_t now = now_ns();
    double ran = static_cast<double>(now - started) * 1e-9;
    if (acknowledged_all_ns == 0 && acknowledged_ >= options_.size) acknowledged_all_ns = now;
    if (options_.abort_ms > 0 && acknowledged_all_ns != 0 &&
        now - acknowledged_all_ns >= uint64_t{options_.abort_ms} * 1'000'000)
      return;
    bool ends = stop->load() || (options_.seconds > 0 && ran >= options_.seconds);
    bool moved = false, finished = true;
    try {
      // A rank whose neighbour has ended ends too.
      for (const Channel& channel : channels_) ends |= options_.rounds == 0 && channel.last_received;
      for (uint32_t c = 0; c < options_.channels; ++c) {
        moved |= progress(c, ends);
        const Channel& channel = channels_[c];
        finished &= channel.last_received && channel.last_sent && channel.send_done == channel.sent;
      }
    } catch (const std::exception&) {
      // The neighbour has given up a moment earlier, on request.
      if (options_.abort_ms > 0) return;
      throw;
    }
    if (finished) break;
    pause.after(moved);
  }
  counters_->last_progress_ns = 0;
}

}  // namespace fabricpulse::ring
