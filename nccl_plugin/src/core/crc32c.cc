#include "core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace fabricpulse {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // bits reversed

// ---- tables: eight bytes a round ("slicing by 8", Kounavis and Berry, 2005) ----

using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables make_tables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t t = 1; t < 8; ++t)
    for (uint32_t byte = 0; byte < 256; ++byte)
      tables[t][byte] = (tables[t - 1][byte] >> 8) ^ tables[0][tables[t - 1][byte] & 0xff];
  return tables;
}

constexpr Tables kTables = make_tables();

uint32_t by_tables(uint32_t crc, const void* data, size_t size) {
  const auto* at = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; size >= 8; size -= 8, at += 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    word ^= crc;
    crc = 0;
    for (uint32_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][(word >> (8 * i)) & 0xff];
  }
  for (; size > 0; --size) crc = (crc >> 8) ^ kTables[0][(crc ^ *at++) & 0xff];
  return ~crc;
}

#if defined(__x86_64__)

// ---- carry-less multiplication (Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
// Instruction", Intel, 2009) ----
//
// A part of the message that stands D bits before another one is brought to its place by multiplying by x^D
// modulo the polynomial. Bits are reversed throughout: the product of two reversed numbers comes out one bit
// short, and a constant of 32 bits stands 32 bits too high in its 64, hence the 33.

constexpr uint32_t x_to_the(uint32_t n) {  // x^n modulo the polynomial, bits reversed
  uint32_t value = 0x80000000;
  for (; n > 0; --n) value = (value >> 1) ^ (value & 1 ? kPolynomial : 0);
  return value;
}
constexpr long long first_half(uint32_t bits) { return x_to_the(bits + 64 - 33); }
constexpr long long second_half(uint32_t bits) { return x_to_the(bits - 33); }

#define FABRICPULSE_SSE __attribute__((target("sse4.2,pclmul")))
#define FABRICPULSE_AVX512 __attribute__((target("sse4.2,pclmul,avx512f,avx512vl,vpclmulqdq")))

// The rest of a message, word by word. `crc` without the final complement.
FABRICPULSE_SSE uint32_t by_words(uint32_t crc, const uint8_t* at, size_t size) {
  uint64_t wide = crc;
  for (; size >= 8; size -= 8, at += 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; --size) crc = _mm_crc32_u8(crc, *at++);
  return crc;
}

FABRICPULSE_SSE inline __m128i fold(__m128i sum, __m128i next, __m128i by) {
  return _mm_xor_si128(
      _mm_xor_si128(_mm_clmulepi64_si128(sum, by, 0x00), _mm_clmulepi64_si128(sum, by, 0x11)), next);
}
FABRICPULSE_SSE inline __m128i load(const uint8_t* at) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
}
FABRICPULSE_SSE inline uint32_t finish(__m128i sum, const uint8_t* at, size_t size) {
  uint64_t crc = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_cvtsi128_si64(sum)));
  crc = _mm_crc32_u64(crc, static_cast<uint64_t>(_mm_extract_epi64(sum, 1)));
  return ~by_words(static_cast<uint32_t>(crc), at, size);
}

FABRICPULSE_SSE uint32_t by_128_bits(uint32_t crc, const void* data, size_t size) {
  const auto* at = static_cast<const uint8_t*>(data);
  if (size < 128) return ~by_words(~crc, at, size);
  const __m128i far = _mm_set_epi64x(second_half(512), first_half(512));
  const __m128i near = _mm_set_epi64x(second_half(128), first_half(128));
  __m128i a = _mm_xor_si128(load(at), _mm_cvtsi32_si128(static_cast<int>(~crc)));
  __m128i b = load(at + 16), c = load(at + 32), d = load(at + 48);
  for (at += 64, size -= 64; size >= 64; at += 64, size -= 64) {
    a = fold(a, load(at), far);
    b = fold(b, load(at + 16), far);
    c = fold(c, load(at + 32), far);
    d = fold(d, load(at + 48), far);
  }
  return finish(fold(fold(fold(a, b, near), c, near), d, near), at, size);
}

FABRICPULSE_AVX512 inline __m512i fold(__m512i sum, __m512i next, __m512i by) {
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, by, 0x00),
                                   _mm512_clmulepi64_epi128(sum, by, 0x11), next, 0x96);
}

// With masks that let everything pass: gcc 12 takes what the plain forms do not set for uninitialised.
FABRICPULSE_AVX512 inline __m512i wide(__m128i narrow) {
  return _mm512_maskz_broadcast_i32x4(0xffff, narrow);
}
FABRICPULSE_AVX512 uint32_t by_512_bits(uint32_t crc, const void* data, size_t size) {
  if (size < 512) return by_128_bits(crc, data, size);
  const auto* at = static_cast<const uint8_t*>(data);
  const __m512i far = wide(_mm_set_epi64x(second_half(2048), first_half(2048)));
  const __m512i near = wide(_mm_set_epi64x(second_half(512), first_half(512)));
  const __m128i within = _mm_set_epi64x(second_half(128), first_half(128));
  __m512i a = _mm512_xor_si512(_mm512_loadu_si512(at),
                               _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(~crc))));
  __m512i b = _mm512_loadu_si512(at + 64), c = _mm512_loadu_si512(at + 128), d = _mm512_loadu_si512(at + 192);
  for (at += 256, size -= 256; size >= 256; at += 256, size -= 256) {
    a = fold(a, _mm512_loadu_si512(at), far);
    b = fold(b, _mm512_loadu_si512(at + 64), far);
    c = fold(c, _mm512_loadu_si512(at + 128), far);
    d = fold(d, _mm512_loadu_si512(at + 192), far);
  }
  a = fold(fold(fold(a, b, near), c, near), d, near);
  __m128i sum =
      fold(_mm512_maskz_extracti32x4_epi32(0xf, a, 0), _mm512_maskz_extracti32x4_epi32(0xf, a, 1), within);
  sum = fold(sum, _mm512_maskz_extracti32x4_epi32(0xf, a, 2), within);
  return finish(fold(sum, _mm512_maskz_extracti32x4_epi32(0xf, a, 3), within), at, size);
}

#elif defined(__aarch64__)

__attribute__((target("+crc"))) uint32_t by_words(uint32_t crc, const void* data, size_t size) {
  const auto* at = static_cast<const uint8_t*>(data);
  crc = ~crc;
  for (; size >= 8; size -= 8, at += 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    crc = __crc32cd(crc, word);
  }
  for (; size > 0; --size) crc = __crc32cb(crc, *at++);
  return ~crc;
}

#endif

using Ways = std::array<Crc32cWay, 4>;

Ways find_ways() {
  Ways ways{};
  size_t count = 0;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool sse = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
  if (sse && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("vpclmulqdq"))
    ways[count++] = {"avx512", by_512_bits};
  if (sse) ways[count++] = {"sse4.2", by_128_bits};
#elif defined(__aarch64__)
  if (getauxval(AT_HWCAP) & HWCAP_CRC32) ways[count++] = {"armv8-crc", by_words};
#endif
  ways[count++] = {"tables", by_tables};
  return ways;
}

const Ways& ways() {
  static const Ways found = find_ways();
  return found;
}

}  // namespace

const Crc32cWay* crc32c_ways() { return ways().data(); }

uint32_t crc32c(uint32_t crc, const void* data, size_t size) {
  static const auto best = ways()[0].extend;
  return best(crc, data, size);
}

}  // namespace fabricpulse
