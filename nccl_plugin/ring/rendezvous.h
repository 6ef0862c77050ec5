// How the ranks find one another: a star around rank 0, over the front-end network.
#ifndef FABRICPULSE_RING_RENDEZVOUS_H_
#define FABRICPULSE_RING_RENDEZVOUS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fabricpulse::ring {

class Rendezvous {
 public:
  // Throws std::runtime_error with one sentence if the others do not come within `timeout_s`.
  Rendezvous(uint32_t rank, uint32_t size, const std::string& address, int timeout_s);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // Everybody's block, by rank; all have the same size.
  std::vector<std::vector<uint8_t>> all_gather(const std::vector<uint8_t>& mine);
  // False if somebody does not come within `timeout_s`.
  bool barrier(int timeout_s);

 private:
  void write_all(int fd, const void* data, size_t size);
  void read_all(int fd, void* data, size_t size);

  uint32_t rank_, size_;
  std::vector<int> fds_;  // rank 0: one a rank (own: -1); others: one
};

}  // namespace fabricpulse::ring

#endif  // FABRICPULSE_RING_RENDEZVOUS_H_
