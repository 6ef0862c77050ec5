// A NCCL net plugin behind one interface, whatever ABI version is asked of it.
#ifndef FABRICPULSE_RING_NET_DRIVER_H_
#define FABRICPULSE_RING_NET_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fabricpulse::ring {

constexpr size_t kHandle = 128;

// Every call throws std::runtime_error with the plugin's code if it does not succeed.
class Net {
 public:
  virtual ~Net() = default;
  virtual int devices() = 0;
  virtual void* listen(int device, void* handle) = 0;
  virtual void* connect(int device, void* handle) = 0;  // nullptr: not yet
  virtual void* accept(void* listen_comm) = 0;          // nullptr: not yet
  virtual void* reg(void* comm, void* data, size_t size) = 0;
  virtual void dereg(void* comm, void* memory) = 0;
  virtual void* isend(void* comm, void* data, size_t size, int tag, void* memory) = 0;  // nullptr: not now
  virtual void* irecv(void* comm, void* data, size_t size, int tag, void* memory) = 0;
  virtual bool test(void* request, size_t* size) = 0;
  virtual void close_send(void* comm) = 0;
  virtual void close_recv(void* comm) = 0;
  virtual void close_listen(void* comm) = 0;
  virtual void finalize() = 0;
};

// Loads the library and initialises the plugin. abi: "v6" to "v12". `communicator` is shown in the telemetry.
std::unique_ptr<Net> load_net(const std::string& library, const std::string& abi, uint64_t communicator);

}  // namespace fabricpulse::ring

#endif  // FABRICPULSE_RING_NET_DRIVER_H_
