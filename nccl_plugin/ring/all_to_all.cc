#include "all_to_all.h"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "waiting.h"

namespace fabricpulse::ring {

AllToAll::AllToAll(const Options& options, Net* net, Rendezvous* rendezvous, Counters* counters)
    : options_(options), net_(net), rendezvous_(rendezvous), counters_(counters) {
  depth_ = options_.rounds > 0 ? std::min<uint64_t>(options_.depth, options_.rounds) : options_.depth;
  uint64_t shares = uint64_t{options_.channels} * (options_.size - 1);
  if (options_.rounds > 0) stop_from_ = options_.rounds - depth_, final_ = options_.rounds - 1;
  block_ = std::max<size_t>(options_.bytes / shares / 4, 4);
  slot_ = block_ * (options_.has_hot ? options_.skew : 1);
  random_.resize(slot_);
  for (size_t i = 0; i < random_.size(); ++i) random_[i] = static_cast<uint32_t>(mix(options_.seed + i));
}

void AllToAll::connect(std::atomic<bool>* stop) {
  uint32_t n = options_.size, channels = options_.channels;
  int devices = net_->devices();
  std::vector<uint8_t> handles(kHandle * n * channels);  // one for each rank and channel
  std::vector<void*> listeners(size_t{n} * channels, nullptr);
  for (uint32_t peer = 0; peer < n; ++peer)
    for (uint32_t c = 0; c < channels && peer != options_.rank; ++c) {
      listeners[peer * channels + c] =
          net_->listen(static_cast<int>(c) % devices, handles.data() + kHandle * (peer * channels + c));
      Connection made;
      made.peer = peer;
      made.channel = c;
      made.out.resize(slot_ * depth_);
      made.in.resize(slot_ * depth_);
      made.sending.resize(depth_);
      made.receiving.resize(depth_);
      connections_.push_back(std::move(made));
    }
  auto all = rendezvous_->all_gather(handles);
  double deadline = now_s() + options_.connect_seconds;
  for (;;) {
    size_t left = 0;
    for (Connection& one : connections_) {
      uint8_t* handle = all[one.peer].data() + kHandle * (options_.rank * channels + one.channel);
      if (one.send == nullptr) one.send = net_->connect(static_cast<int>(one.channel) % devices, handle);
      if (one.recv == nullptr) one.recv = net_->accept(listeners[one.peer * channels + one.channel]);
      left += (one.send == nullptr) + (one.recv == nullptr);
    }
    if (left == 0) break;
    if (stop->load() || now_s() > deadline)
      throw std::runtime_error(
          "connecting: " + std::to_string(left) + " of " + std::to_string(connections_.size() * 2) +
          " connections were not made within " + std::to_string(options_.connect_seconds) + " s");
    usleep(1000);
  }
  for (void* listener : listeners)
    if (listener != nullptr) net_->close_listen(listener);
  for (Connection& one : connections_) {
    one.send_memory = net_->reg(one.send, one.out.data(), one.out.size() * 4);
    one.recv_memory = net_->reg(one.recv, one.in.data(), one.in.size() * 4);
  }
  if (options_.profile)
    profile_ =
        std::make_unique<Profile>(options_.plugin, options_.seed, n, options_.rank, Profile::kAllToAll);
}

void AllToAll::close() {
  profile_.reset();
  for (Connection& one : connections_) {
    if (one.send_memory != nullptr) net_->dereg(one.send, one.send_memory);
    if (one.recv_memory != nullptr) net_->dereg(one.recv, one.recv_memory);
    if (one.send != nullptr) net_->close_send(one.send);
    if (one.recv != nullptr) net_->close_recv(one.recv);
  }
  connections_.clear();
}

uint64_t AllToAll::key(uint32_t from, uint32_t to, uint64_t number) const {
  return mix(options_.seed ^ (number * 2 + 1) ^ (uint64_t{from} << 48) ^ (uint64_t{to} << 32));
}

size_t AllToAll::size_for(uint32_t peer) const {
  bool more = counters_->skewed && options_.has_hot && peer == options_.hot;
  return (more ? slot_ : block_) * 4;
}

void AllToAll::end_soon() {
  uint64_t unsent = 0;
  for (const Connection& one : connections_) unsent = std::max(unsent, one.send_posted);
  stop_from_ = std::min(stop_from_, unsent);
  final_ = std::min(final_, stop_from_ + depth_ - 1);
}

size_t AllToAll::fill(Connection* one, uint64_t number) {
  uint64_t words = key(options_.rank, one->peer, number);
  auto factor = static_cast<uint32_t>(words), offset = static_cast<uint32_t>(words >> 32);
  uint32_t* to = one->out.data() + slot_ * (number % depth_);
  size_t bytes = size_for(one->peer);
  for (size_t i = 1; i < bytes / 4; ++i) to[i] = random_[i] * factor + offset;
  to[0] = number >= stop_from_ ? 1 : 0;
  return bytes;
}

void AllToAll::verify(const Connection& one, uint64_t number, size_t bytes) {
  // Only the sender knows whether it has more for a hot rank.
  bool more = options_.has_hot && options_.rank == options_.hot && bytes == slot_ * 4;
  if (bytes != block_ * 4 && !more)
    throw std::runtime_error("a receive of " + std::to_string(block_ * 4) + " bytes got " +
                             std::to_string(bytes));
  uint64_t words = key(one.peer, options_.rank, number);
  auto factor = static_cast<uint32_t>(words), offset = static_cast<uint32_t>(words >> 32);
  const uint32_t* in = one.in.data() + slot_ * (number % depth_);
  uint64_t wrong = in[0] > 1 ? 1 : 0;
  for (size_t i = 1; i < bytes / 4; ++i) wrong += in[i] != random_[i] * factor + offset;
  counters_->corrupt_bytes += wrong * 4;
  if (in[0] == 1) final_ = std::min(final_, number + depth_ - 1);
}

bool AllToAll::progress(Connection* one) {
  auto tag = static_cast<int>(one->channel);
  bool moved = false;
  size_t bytes = 0;
  while (one->recv_posted - one->recv_done < depth_ && open(one->recv_posted)) {
    uint64_t slot = one->recv_posted % depth_;
    void* request = net_->irecv(one->recv, one->in.data() + slot_ * slot, slot_ * 4, tag, one->recv_memory);
    if (request == nullptr) break;
    one->receiving[slot] = request;
    ++one->recv_posted;
    moved = true;
  }
  while (one->recv_done < one->recv_posted && net_->test(one->receiving[one->recv_done % depth_], &bytes)) {
    counters_->arrived(bytes);
    verify(*one, one->recv_done, bytes);
    ++one->recv_done;
    moved = true;
  }
  while (one->send_posted - one->send_done < depth_ && open(one->send_posted)) {
    uint64_t number = one->send_posted;
    size_t size = fill(one, number);
    uint32_t* from = one->out.data() + slot_ * (number % depth_);
    void* request = net_->isend(one->send, from, size, tag, one->send_memory);
    if (request == nullptr) break;
    one->sending[number % depth_] = request;
    ++one->send_posted;
    moved = true;
  }
  while (one->send_done < one->send_posted && net_->test(one->sending[one->send_done % depth_], &bytes)) {
    ++one->send_done;
    moved = true;
  }
  return moved;
}

uint64_t AllToAll::done() const {
  uint64_t least = UINT64_MAX;
  for (const Connection& one : connections_) least = std::min({least, one.send_done, one.recv_done});
  return least;
}

void AllToAll::run(std::atomic<bool>* stop) {
  uint64_t started = now_ns();
  size_t round_bytes = block_ * 4 * connections_.size();
  Pause pause(options_.busy, options_.poll_us);
  auto begin = [&] {
    if (profile_ != nullptr) profile_->begin(completed_, round_bytes);
    counters_->last_progress_ns = now_ns();
  };
  begin();
  for (;;) {
    if (stop->load() ||
        (options_.seconds > 0 && static_cast<double>(now_ns() - started) * 1e-9 >= options_.seconds))
      end_soon();
    bool moved = false;
    for (Connection& one : connections_) moved |= progress(&one);
    while (completed_ < done()) {
      ++completed_;
      ++counters_->rounds;
      if (profile_ != nullptr) profile_->end();
      counters_->last_progress_ns = 0;
      if (completed_ > final_) return;
      if (options_.compute_ms > 0) usleep(options_.compute_ms * 1000);
      if (counters_->straggles) usleep(options_.late_ms * 1000);
      begin();
    }
    pause.after(moved);
  }
}

}  // namespace fabricpulse::ring
