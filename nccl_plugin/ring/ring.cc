#include "ring.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace fabricpulse::ring {
Ring::Ring(const Options& options, Net* net, Rendezvous* rendezvous, Counters* counters)
    : options_(options), net_(net), rendezvous_(rendezvous), counters_(counters) {
  size_t elements = std::max<size_t>(options_.bytes / 4, 1);
  pattern_.resize(elements);
  buffer_.resize(elements);
  for (size_t i = 0; i < elements; ++i) pattern_[i] = static_cast<uint32_t>(mix(options_.seed + i));
  slice_elements_ = std::max<size_t>(options_.slice / 4, 1);
  channels_.resize(options_.channels);
  size_t most = 0;
  for (uint32_t c = 0; c < options_.channels; ++c) {
    channels_[c].first = elements * c / options_.channels;
    channels_[c].count = elements * (c + 1) / options_.channels - channels_[c].first;
    most = std::max(most, (channels_[c].count + options_.size - 1) / options_.size);
  }
  slices_ = std::max<uint64_t>((most + slice_elements_ - 1) / slice_elements_, 1);
}

void Ring::connect(std::atomic<bool>* stop) {
  links_ = connect_links(options_, net_, rendezvous_, stop);
  if (options_.profile)
    profile_ = std::make_unique<Profile>(options_.plugin, options_.seed, options_.size, options_.rank,
                                         Profile::kAllReduce);
  for (uint32_t c = 0; c < options_.channels; ++c) {
    Channel& channel = channels_[c];
    channel.temp.resize(slice_elements_ * options_.depth);
    channel.recv_requests.resize(options_.depth);
    channel.send_requests.resize(options_.depth);
    channel.send_memory = net_->reg(links_[c].send, buffer_.data(), buffer_.size() * 4);
    channel.recv_memory = net_->reg(links_[c].recv, buffer_.data(), buffer_.size() * 4);
    channel.temp_memory = net_->reg(links_[c].recv, channel.temp.data(), channel.temp.size() * 4);
  }
}

void Ring::close() {
  profile_.reset();
  for (uint32_t c = 0; c < links_.size(); ++c) {
    Channel& channel = channels_[c];
    if (channel.send_memory != nullptr) net_->dereg(links_[c].send, channel.send_memory);
    if (channel.recv_memory != nullptr) net_->dereg(links_[c].recv, channel.recv_memory);
    if (channel.temp_memory != nullptr) net_->dereg(links_[c].recv, channel.temp_memory);
  }
  close_links(&links_, net_);
}

uint32_t Ring::a(uint32_t rank, uint64_t round) const {
  return static_cast<uint32_t>(mix(options_.seed ^ (round * 2 + 1) ^ (uint64_t{rank} << 48)));
}
uint32_t Ring::b(uint32_t rank, uint64_t round) const {
  return static_cast<uint32_t>(mix(~options_.seed ^ (round * 2) ^ (uint64_t{rank} << 40)));
}

// Step s of n ranks: reduce-scatter for s < n - 1, then all-gather. Slices of a step follow one another.
Ring::Slice Ring::slice(const Channel& channel, uint64_t index, bool send) const {
  uint64_t n = options_.size, step = index / slices_, part = index % slices_;
  // The segment sent in step s is rank - s, all the way round; the one received is the next one back.
  uint64_t segment = (options_.rank + 2 * n - step - (send ? 0 : 1)) % n;
  size_t begin = channel.count * segment / n, end = channel.count * (segment + 1) / n;
  size_t from = std::min(begin + part * slice_elements_, end), to = std::min(from + slice_elements_, end);
  return {channel.first + from, to - from};
}

bool Ring::progress(Channel* channel, const Link& link) {
  bool moved = false;
  uint64_t depth = options_.depth, reduce = (options_.size - 1) * slices_;
  while (channel->recv_posted < channel->total && channel->recv_posted - channel->recv_done < depth) {
    uint64_t index = channel->recv_posted;
    Slice where = slice(*channel, index, false);
    bool temporary = index < reduce;
    uint32_t* to =
        temporary ? channel->temp.data() + (index % depth) * slice_elements_ : buffer_.data() + where.first;
    void* request = net_->irecv(link.recv, to, where.count * 4, static_cast<int>(options_.rank),
                                temporary ? channel->temp_memory : channel->recv_memory);
    if (request == nullptr) break;
    channel->recv_requests[index % depth] = request;
    ++channel->recv_posted;
    moved = true;
  }
  while (channel->recv_done < channel->recv_posted) {
    uint64_t index = channel->recv_done;
    size_t bytes = 0;
    if (!net_->test(channel->recv_requests[index % depth], &bytes)) break;
    Slice where = slice(*channel, index, false);
    if (bytes != where.count * 4)
      throw std::runtime_error("a receive of " + std::to_string(where.count * 4) + " bytes got " +
                               std::to_string(bytes));
    if (index < reduce) {
      const uint32_t* from = channel->temp.data() + (index % depth) * slice_elements_;
      uint32_t* to = buffer_.data() + where.first;
      for (size_t i = 0; i < where.count; ++i) to[i] += from[i];
    }
    ++channel->recv_done;
    counters_->arrived(bytes);
    moved = true;
  }
  // What is sent in a step was received in the step before.
  while (channel->send_posted < channel->total && channel->send_posted - channel->send_done < depth &&
         (channel->send_posted < slices_ || channel->recv_done > channel->send_posted - slices_)) {
    uint64_t index = channel->send_posted;
    Slice what = slice(*channel, index, true);
    void* request = net_->isend(link.send, buffer_.data() + what.first, what.count * 4,
                                static_cast<int>((options_.rank + 1) % options_.size), channel->send_memory);
    if (request == nullptr) break;
    channel->send_requests[index % depth] = request;
    ++channel->send_posted;
    moved = true;
  }
  while (channel->send_done < channel->send_posted) {
    size_t bytes = 0;
    if (!net_->test(channel->send_requests[channel->send_done % depth], &bytes)) break;
    ++channel->send_done;
    moved = true;
  }
  return moved;
}

void Ring::round(uint64_t number, bool stop) {
  uint32_t factor = a(options_.rank, number), offset = b(options_.rank, number);
  for (size_t i = 0; i < buffer_.size(); ++i) buffer_[i] = pattern_[i] * factor + offset;
  buffer_[0] = stop ? 1 : 0;
  for (Channel& channel : channels_) {
    channel.total = steps() * slices_;
    channel.recv_posted = channel.recv_done = channel.send_posted = channel.send_done = 0;
  }
  if (profile_ != nullptr) profile_->begin(number, buffer_.size() * 4);
  counters_->last_progress_ns = now_ns();
  Pause pause(options_.busy, options_.poll_us);
  for (;;) {
    bool moved = false, finished = true;
    for (size_t c = 0; c < channels_.size(); ++c) {
      const Channel& channel = channels_[c];
      moved |= progress(&channels_[c], links_[c]);
      finished &= channel.send_done == channel.total && channel.recv_done == channel.total;
    }
    if (finished) break;
    pause.after(moved);
  }
  counters_->last_progress_ns = 0;
  if (profile_ != nullptr) profile_->end();
  uint32_t sum_a = 0, sum_b = 0;
  for (uint32_t r = 0; r < options_.size; ++r) {
    sum_a += a(r, number);
    sum_b += b(r, number);
  }
  uint64_t wrong = buffer_[0] > options_.size ? 1 : 0;
  for (size_t i = 1; i < buffer_.size(); ++i) wrong += buffer_[i] != pattern_[i] * sum_a + sum_b;
  counters_->corrupt_bytes += wrong * 4;
  ++counters_->rounds;
}

void Ring::run(std::atomic<bool>* stop) {
  uint64_t started = now_ns();
  for (uint64_t number = 0;; ++number) {
    bool enough =
        stop->load() || (options_.rounds > 0 && number + 1 >= options_.rounds) ||
        (options_.seconds > 0 && static_cast<double>(now_ns() - started) * 1e-9 >= options_.seconds);
    round(number, enough);
    if (buffer_[0] != 0) return;  // the sum over all ranks, which stop after the same round
    if (options_.compute_ms > 0) usleep(options_.compute_ms * 1000);
    if (counters_->straggles) usleep(options_.late_ms * 1000);
  }
}

}  // namespace fabricpulse::ring
