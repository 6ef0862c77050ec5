// SipHash-2-4 with a 64-bit tag: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012).
//
// A keyed pseudo-random function made for short inputs: 100 ns for a probe, where HMAC-SHA-256 takes 1 us.
#ifndef FABRICPULSE_SIPHASH_H_
#define FABRICPULSE_SIPHASH_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fabricpulse {

using SipKey = std::array<std::uint8_t, 16>;

inline std::uint64_t siphash24(const SipKey& key, const std::uint8_t* data, std::size_t size) {
  auto load = [](const std::uint8_t* p) {
    std::uint64_t v;
    std::memcpy(&v, p, sizeof(v));
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    v = __builtin_bswap64(v);
#endif
    return v;
  };
  auto rotl = [](std::uint64_t x, int b) { return x << b | x >> (64 - b); };
  const std::uint64_t k0 = load(key.data()), k1 = load(key.data() + 8);
  std::uint64_t v0 = k0 ^ 0x736f6d6570736575u, v1 = k1 ^ 0x646f72616e646f6du;
  std::uint64_t v2 = k0 ^ 0x6c7967656e657261u, v3 = k1 ^ 0x7465646279746573u;
  auto rounds = [&](int n) {
    while (n-- > 0) {
      v0 += v1, v1 = rotl(v1, 13), v1 ^= v0, v0 = rotl(v0, 32);
      v2 += v3, v3 = rotl(v3, 16), v3 ^= v2;
      v0 += v3, v3 = rotl(v3, 21), v3 ^= v0;
      v2 += v1, v1 = rotl(v1, 17), v1 ^= v2, v2 = rotl(v2, 32);
    }
  };
  std::size_t left = size;
  for (; left >= 8; left -= 8, data += 8) {
    const std::uint64_t m = load(data);
    v3 ^= m;
    rounds(2);
    v0 ^= m;
  }
  std::uint64_t last = static_cast<std::uint64_t>(size & 0xff) << 56;
  for (std::size_t i = 0; i < left; ++i) last |= static_cast<std::uint64_t>(data[i]) << (8 * i);
  v3 ^= last;
  rounds(2);
  v0 ^= last;
  v2 ^= 0xff;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_SIPHASH_H_
