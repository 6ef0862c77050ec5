// The application of plugin_verbs_lanes: it sends messages of known bytes over one connection, from and to registered
// buffers of which a few are under way, and checks what arrives, and that nothing is written into a buffer that it has
// back.
#ifndef FABRICPULSE_TESTS_VERBS_MESSAGE_STREAM_H_
#define FABRICPULSE_TESTS_VERBS_MESSAGE_STREAM_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/recv_connection.h"
#include "core/send_connection.h"
#include "transport/verbs/verbs_device.h"

namespace fabricpulse {

[[noreturn]] inline void broken(const std::string& what) {
  fprintf(stderr, "%s\n", what.c_str());
  exit(1);
}

class MessageStream {
 public:
  // large : messages of the largest size only.
  MessageStream(std::mt19937* random, VerbsDevices* devices, uint64_t messages, bool large)
      : random_(random), devices_(devices), messages_(messages), large_(large) {
    for (uint64_t i = 0; i < kUnderWay; ++i) {
      out_.push_back(make_buffer());
      in_.push_back(make_buffer());
    }
  }

  uint64_t received() const { return received_; }
  uint64_t moved() const { return received_ + acknowledged_; }
  bool done() const { return received_ >= messages_ && acknowledged_ >= messages_; }
  bool past_middle() const { return received_ > messages_ / 2; }
  // There are some messages more to come.
  void go_on() { messages_ = std::max(messages_, received_ + 50); }

  // post : new requests, too.
  void step(SendConnection* sender, RecvConnection* receiver, bool post, uint64_t now) {
    if (post && posted_ < messages_ && posted_ - received_ < kUnderWay && any(3) == 0) {
      Buffer& buffer = in_[posted_ % kUnderWay];
      memset(buffer.bytes.data(), 0xee, buffer.bytes.size());
      size_t size = size_of(posted_);
      receives_[posted_ % kUnderWay] = receiver->receive(buffer.bytes.data(), size, buffer.memory, now);
      if (receives_[posted_ % kUnderWay] == nullptr) broken("no receive");
      ++posted_;
    }
    if (post && sent_ < messages_ && sent_ - acknowledged_ < kUnderWay && any(3) == 0) {
      Buffer& buffer = out_[sent_ % kUnderWay];
      size_t size = size_of(sent_);
      for (size_t i = 0; i < size; ++i) buffer.bytes[i] = byte_of(sent_, i);
      sends_[sent_ % kUnderWay] =
          sender->send(buffer.bytes.data(), static_cast<uint32_t>(size), 0, buffer.memory, now);
      if (sends_[sent_ % kUnderWay] == nullptr) broken("no send");
      ++sent_;
    }
    uint32_t size = 0;
    bool truncated = false;
    ReceiveMessage* arriving = receives_[received_ % kUnderWay];
    if (received_ < posted_ && !receiver->waits(arriving) &&
        receiver->test(arriving, &size, &truncated, now)) {
      if (truncated || size != size_of(received_)) broken("message of another size");
      Buffer& buffer = in_[received_ % kUnderWay];
      for (size_t i = 0; i < size; ++i)
        if (buffer.bytes[i] != byte_of(received_, i))
          broken("wrong byte in message " + std::to_string(received_));
      // The application's own from here on.
      memset(buffer.bytes.data(), 0xaa, buffer.bytes.size());
      ++received_;
    }
    SendMessage* leaving = sends_[acknowledged_ % kUnderWay];
    if (acknowledged_ < sent_ && !sender->waits(leaving) && sender->test(leaving, &size, now)) {
      memset(out_[acknowledged_ % kUnderWay].bytes.data(), 0xbb, kMost);  // reused at once
      ++acknowledged_;
    }
  }

  // Buffers that were given back hold what the application has put there.
  void check_returned() {
    for (uint64_t m = received_ > kUnderWay ? received_ - kUnderWay : 0; m < received_; ++m) {
      if (m + kUnderWay < posted_) continue;
      const Buffer& buffer = in_[m % kUnderWay];
      for (size_t i = any(97); i < buffer.bytes.size(); i += 97)
        if (buffer.bytes[i] != 0xaa) broken("a write landed in memory that was given back");
    }
  }

  // As an abort: what is under way is never done.
  void take_memory_back(SendConnection* sender, RecvConnection* receiver, uint64_t now) {
    for (Buffer& buffer : in_) {
      receiver->memory_returned(buffer.memory, now);
      devices_->deregister_memory(buffer.memory);
      memset(buffer.bytes.data(), 0xaa, buffer.bytes.size());
    }
    for (Buffer& buffer : out_) {
      sender->memory_returned(buffer.memory, now);
      devices_->deregister_memory(buffer.memory);
      std::vector<uint8_t>().swap(buffer.bytes);
    }
    taken_back_ = true;
  }
  void check_taken_back() const {
    for (const Buffer& buffer : in_)
      for (uint8_t byte : buffer.bytes)
        if (byte != 0xaa) broken("a write landed in memory that was taken back");
  }

  // At the end.
  void deregister() {
    for (auto* buffers : {&out_, &in_})
      for (Buffer& buffer : *buffers)
        if (!taken_back_) devices_->deregister_memory(buffer.memory);
  }

 private:
  static constexpr uint64_t kUnderWay = 6;
  static constexpr size_t kMost = 300'000;

  struct Buffer {
    std::vector<uint8_t> bytes;
    VerbsMemory* memory = nullptr;
  };

  static uint8_t byte_of(uint64_t message, size_t at) {
    return static_cast<uint8_t>(message * 31 + at * 7 + (at >> 8));
  }
  uint64_t any(uint64_t count) { return std::uniform_int_distribution<uint64_t>(0, count - 1)(*random_); }

  Buffer make_buffer() {
    Buffer buffer;
    buffer.bytes.assign(kMost, 0xee);
    std::string why;
    buffer.memory = devices_->register_memory(buffer.bytes.data(), buffer.bytes.size(), &why);
    if (buffer.memory == nullptr) broken(why);
    return buffer;
  }

  size_t size_of(uint64_t message) const {
    if (large_) return kMost;
    std::mt19937 own(static_cast<uint32_t>(message * 2654435761u + 1));
    switch (own() % 5) {
      case 0:
        return own() % 200;
      case 1:
        return own() % 16'384;
      case 2:
        return 16'380 + own() % 10;
      default:
        return own() % kMost;
    }
  }

  std::mt19937* const random_;
  VerbsDevices* const devices_;
  uint64_t messages_;
  const bool large_;
  bool taken_back_ = false;
  std::vector<Buffer> out_, in_;
  SendMessage* sends_[kUnderWay] = {};
  ReceiveMessage* receives_[kUnderWay] = {};
  uint64_t sent_ = 0, acknowledged_ = 0, posted_ = 0, received_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TESTS_VERBS_MESSAGE_STREAM_H_
