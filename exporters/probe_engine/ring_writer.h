// The writer of <run>/probes: core/include/fabricpulse/probe_ring.h.
#ifndef FABRICPULSE_EXPORTERS_RING_WRITER_H_
#define FABRICPULSE_EXPORTERS_RING_WRITER_H_

#include <cstdint>
#include <string>

#include "fabricpulse/probe_ring.h"

namespace fabricpulse {

// Epoch of the stamp clock in the ring that another engine left at `path`; 0 where there is none.
std::int64_t old_stamp_epoch(const std::string& path);

class RingWriter {
 public:
  // A new file in place of the old one, whose readers keep the old content. Throws std::system_error.
  RingWriter(const std::string& path, const std::string& host, std::uint32_t epoch,
             std::uint32_t edge_capacity, std::uint32_t capacity, std::int64_t stamp_epoch_ns);
  ~RingWriter();
  RingWriter(const RingWriter&) = delete;
  RingWriter& operator=(const RingWriter&) = delete;

  void set_edge(std::uint32_t index, const fp_probe_edge& edge);
  void retire_edge(std::uint32_t index);
  void write(const fp_probe_sample& sample);
  // Reports to readers that this host's clock page is wrong.
  void contradicted();
  // And that it may be.
  void doubted();
  // By how much it may be wrong beyond its bound, ns.
  void set_hidden_jump(std::int64_t ns);
  std::uint64_t written() const { return next_; }
  std::uint32_t edge_capacity() const { return header_->edge_capacity; }

 private:
  // Readers that wait for one of these.
  void wake();
  // Changes one entry in the table that is not in force, and puts that one in force.
  void change_edge(std::uint32_t index, const fp_probe_edge& edge);
  const fp_probe_edge& edge_in_force(std::uint32_t index) const;

  void* map_ = nullptr;
  std::size_t size_ = 0;
  fp_probe_ring_header* header_ = nullptr;
  fp_probe_edge* edges_ = nullptr;  // both tables
  std::uint32_t changed_ = 0;       // the entry in which the table that is not in force is behind
  fp_probe_sample* samples_ = nullptr;
  std::uint64_t next_ = 0;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_RING_WRITER_H_
