// Integers of packets: little endian, at any place.
//
// Copied as a whole. Of a loop over the bytes compilers make one load or store in some places and eight in others, and
// a packet has two dozen of them.
#ifndef FABRICPULSE_EXPORTERS_PACKETS_BYTES_H_
#define FABRICPULSE_EXPORTERS_PACKETS_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fabricpulse {

template <typename T>
T little_endian(T value) {
  static_assert(std::is_integral_v<T> && sizeof(T) > 1);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  if constexpr (sizeof(T) == 2) return static_cast<T>(__builtin_bswap16(static_cast<std::uint16_t>(value)));
  if constexpr (sizeof(T) == 4) return static_cast<T>(__builtin_bswap32(static_cast<std::uint32_t>(value)));
  if constexpr (sizeof(T) == 8) return static_cast<T>(__builtin_bswap64(static_cast<std::uint64_t>(value)));
#else
  return value;
#endif
}

template <typename T>
void put(std::uint8_t* out, std::size_t offset, T value) {
  value = little_endian(value);
  std::memcpy(out + offset, &value, sizeof(value));
}

template <typename T>
T get(const std::uint8_t* data, std::size_t offset) {
  T value;
  std::memcpy(&value, data + offset, sizeof(value));
  return little_endian(value);
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_PACKETS_BYTES_H_
