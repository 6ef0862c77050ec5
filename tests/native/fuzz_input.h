// The bytes of a fuzz input, taken from the front: what a target decides by them.
#ifndef FABRICPULSE_TESTS_FUZZ_INPUT_H_
#define FABRICPULSE_TESTS_FUZZ_INPUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

class FuzzInput {
 public:
  FuzzInput(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool more() const { return size_ > 0; }
  // 0 behind the end.
  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  uint32_t word() {
    uint32_t low = byte();
    return low | static_cast<uint32_t>(byte()) << 8;
  }
  // A small number mostly, now and then one that is far off.
  uint64_t number() {
    uint8_t value = byte();
    return value < 240 ? value : UINT64_C(0x0101010101010101) * byte() << (value % 16 * 4);
  }
  // Fewer than `count` where the input ends before.
  std::vector<uint8_t> bytes(size_t count) {
    count = std::min(count, size_);
    std::vector<uint8_t> out(data_, data_ + count);
    data_ += count;
    size_ -= count;
    return out;
  }
  // Zeros behind the end.
  void fill(void* out, size_t count) {
    for (size_t i = 0; i < count; ++i) static_cast<uint8_t*>(out)[i] = byte();
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

#endif  // FABRICPULSE_TESTS_FUZZ_INPUT_H_
