// Checksums of what goes over a lane. TCP's 16 bits and a NIC's offload let one in some ten million damaged
// segments pass (Stone and Partridge, "When the CRC and TCP checksum disagree", 2000).
#ifndef FABRICPULSE_CORE_FRAME_CHECK_H_
#define FABRICPULSE_CORE_FRAME_CHECK_H_

#include <cstddef>

#include "core/crc32c.h"
#include "core/wire.h"

namespace fabricpulse {

inline uint32_t frame_crc(const FrameHeader& header, const HeldState* body) {
  uint32_t crc = crc32c(0, &header, offsetof(FrameHeader, crc));
  return body != nullptr ? crc32c(crc, body, sizeof(*body)) : crc;
}
// body: of a state frame that has one.
inline void seal_frame(FrameHeader* header, const HeldState* body) { header->crc = frame_crc(*header, body); }
inline bool frame_intact(const FrameHeader& header, const HeldState* body) {
  return header.crc == frame_crc(header, body);
}

inline uint32_t hello_crc(const Hello& hello) { return crc32c(0, &hello, offsetof(Hello, crc)); }
inline uint32_t reply_crc(const HelloReply& reply) {
  constexpr size_t kAfter = offsetof(HelloReply, crc) + sizeof(reply.crc);
  uint32_t crc = crc32c(0, &reply, offsetof(HelloReply, crc));
  return crc32c(crc, reinterpret_cast<const uint8_t*>(&reply) + kAfter, sizeof(reply) - kAfter);
}
// Of another version nothing is known but its number, and a reply of one carries only that.
inline bool hello_intact(const Hello& hello) { return hello.crc == hello_crc(hello); }
inline bool reply_intact(const HelloReply& reply) {
  if (reply.version != kWireVersion) return reply.status == HelloStatus::kVersion;
  return reply.crc == reply_crc(reply);
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_FRAME_CHECK_H_
