// CRC-32C (Castagnoli; RFC 3720, appendix B.4): what iSCSI, SCTP and RoCE's peers use for payloads.
//
// By the processor's instructions where it has them: carry-less multiplication of 512 or 128 bits with the CRC
// instruction (x86), the CRC instruction (ARMv8); by tables elsewhere.
#ifndef FABRICPULSE_CORE_CRC32C_H_
#define FABRICPULSE_CORE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace fabricpulse {

// The checksum of what `crc` is the checksum of, followed by `size` bytes. 0: of nothing.
uint32_t crc32c(uint32_t crc, const void* data, size_t size);

// One way to compute it that this processor can run; the last one is the slowest. For tests and benchmarks.
struct Crc32cWay {
  const char* name;
  uint32_t (*extend)(uint32_t crc, const void* data, size_t size);
};
// Fastest first. Ends with a name of nullptr.
const Crc32cWay* crc32c_ways();

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_CRC32C_H_
