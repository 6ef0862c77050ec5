#include "net_driver.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <stdexcept>
#include <type_traits>

#include "abi/net.h"

namespace fabricpulse::ring {
namespace {

using namespace fabricpulse::abi;

// As NCCL: warnings always, the rest with NCCL_DEBUG=INFO.
void log_line(int level, unsigned long, const char*, int, const char* format, ...) {
  static const bool verbose = [] {
    const char* text = getenv("NCCL_DEBUG");
    return text != nullptr && (std::string(text) == "INFO" || std::string(text) == "TRACE");
  }();
  if (level > 2 && !verbose) return;
  va_list arguments;
  va_start(arguments, format);
  char line[2048];
  vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  fprintf(stderr, "%s\n", line);
}

void check(Result result, const char* call) {
  if (result != kSuccess)
    throw std::runtime_error(std::string(call) + " returned " + std::to_string(static_cast<int>(result)));
}

template <typename Table, typename Properties>
class NetOf final : public Net {
  static constexpr bool kV6 = std::is_same_v<Table, NetV6>;
  static constexpr bool kContext = std::is_same_v<Table, NetV11> || std::is_same_v<Table, NetV12>;
  static constexpr bool kV10 = std::is_same_v<Table, NetV10>;
  static constexpr bool kProfiled = kV10 || kContext;
  static constexpr bool kIntReg = kV6 || std::is_same_v<Table, NetV7>;
  static constexpr bool kIntSend = kIntReg || std::is_same_v<Table, NetV8>;

 public:
  NetOf(const Table* table, uint64_t communicator) : table_(table) {
    Config config{-1};
    if constexpr (kContext) {
      check(table_->init(&context_, communicator, &config, log_line, nullptr), "init");
    } else if constexpr (kV10) {
      check(table_->init(log_line, nullptr), "init");
    } else {
      check(table_->init(log_line), "init");
    }
  }
  int devices() override {
    int count = 0;
    check(table_->devices(&count), "devices");
    for (int device = 0; device < count; ++device) {
      Properties properties{};
      check(table_->get_properties(device, &properties), "getProperties");
      if (properties.name == nullptr || properties.max_recvs != 1)
        throw std::runtime_error("getProperties: device " + std::to_string(device) +
                                 " has no name, or another maxRecvs than 1");
    }
    return count;
  }
  void* listen(int device, void* handle) override {
    void* comm = nullptr;
    if constexpr (kContext) {
      check(table_->listen(context_, device, handle, &comm), "listen");
    } else {
      check(table_->listen(device, handle, &comm), "listen");
    }
    return comm;
  }
  void* connect(int device, void* handle) override {
    void *comm = nullptr, *device_handle = nullptr;
    Config config{-1};
    if constexpr (kContext) {
      NetAttributes attributes{{-1, -1, -1, -1}, {-1, -1, -1, -1}, 1u << 4, 1u << 1, 1u << 2};
      check(table_->set_attributes(context_, &attributes), "setNetAttr");
      check(table_->connect(context_, device, handle, &comm, &device_handle), "connect");
    } else if constexpr (kV10) {
      check(table_->connect(device, &config, handle, &comm, &device_handle), "connect");
    } else if constexpr (kV6) {
      check(table_->connect(device, handle, &comm), "connect");
    } else {
      check(table_->connect(device, handle, &comm, &device_handle), "connect");
    }
    return comm;
  }
  void* accept(void* listen_comm) override {
    void *comm = nullptr, *device_handle = nullptr;
    if constexpr (kV6) {
      check(table_->accept(listen_comm, &comm), "accept");
    } else {
      check(table_->accept(listen_comm, &comm, &device_handle), "accept");
    }
    if (comm != nullptr) refuses_two(comm);
    return comm;
  }
  void* reg(void* comm, void* data, size_t size) override {
    void* memory = nullptr;
    if constexpr (kIntReg) {
      check(table_->reg_mr(comm, data, static_cast<int>(size), kPointerHost, &memory), "regMr");
    } else {
      check(table_->reg_mr(comm, data, size, kPointerHost, &memory), "regMr");
    }
    return memory;
  }
  void dereg(void* comm, void* memory) override { check(table_->dereg_mr(comm, memory), "deregMr"); }
  void* isend(void* comm, void* data, size_t size, int tag, void* memory) override {
    void* request = nullptr;
    if constexpr (kProfiled) {
      check(table_->isend(comm, data, size, tag, memory, nullptr, &request), "isend");
    } else if constexpr (kIntSend) {
      check(table_->isend(comm, data, static_cast<int>(size), tag, memory, &request), "isend");
    } else {
      check(table_->isend(comm, data, size, tag, memory, &request), "isend");
    }
    return request;
  }
  void* irecv(void* comm, void* data, size_t size, int tag, void* memory) override {
    void* request = nullptr;
    check(receive(comm, 1, &data, &size, &tag, &memory, &request), "irecv");
    return request;
  }
  bool test(void* request, size_t* size) override {
    int done = 0, bytes = 0;
    check(table_->test(request, &done, &bytes), "test");
    *size = static_cast<size_t>(bytes);
    return done != 0;
  }
  void close_send(void* comm) override { check(table_->close_send(comm), "closeSend"); }
  void close_recv(void* comm) override { check(table_->close_recv(comm), "closeRecv"); }
  void close_listen(void* comm) override { check(table_->close_listen(comm), "closeListen"); }
  void finalize() override {
    if constexpr (kContext) check(table_->finalize(context_), "finalize");
  }

 private:
  Result receive(void* comm, int n, void** data, size_t* sizes, int* tags, void** memory, void** request) {
    if constexpr (kProfiled) {
      return table_->irecv(comm, n, data, sizes, tags, memory, nullptr, request);
    } else if constexpr (kIntSend) {
      int small[2] = {static_cast<int>(sizes[0]), n > 1 ? static_cast<int>(sizes[1]) : 0};
      return table_->irecv(comm, n, data, small, tags, memory, request);
    } else {
      return table_->irecv(comm, n, data, sizes, tags, memory, request);
    }
  }

  // More receives in one request than maxRecvs are an error, and leave the connection as it was.
  void refuses_two(void* comm) {
    char bytes[2];
    void *data[2] = {bytes, bytes + 1}, *memory[2] = {}, *request = nullptr;
    size_t sizes[2] = {1, 1};
    int tags[2] = {};
    if (receive(comm, 2, data, sizes, tags, memory, &request) == kSuccess || request != nullptr)
      throw std::runtime_error("irecv took two receives, though maxRecvs is 1");
  }

  const Table* table_;
  void* context_ = nullptr;
};

}  // namespace

std::unique_ptr<Net> load_net(const std::string& library, const std::string& abi, uint64_t communicator) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(std::string("cannot load the plugin: ") + dlerror());
  std::string symbol = "ncclNetPlugin_" + abi;
  void* table = dlsym(handle, symbol.c_str());
  if (table == nullptr) throw std::runtime_error(library + " has no " + symbol);
  if (abi == "v6")
    return std::make_unique<NetOf<NetV6, PropertiesV6>>(static_cast<NetV6*>(table), communicator);
  if (abi == "v7")
    return std::make_unique<NetOf<NetV7, PropertiesV7>>(static_cast<NetV7*>(table), communicator);
  if (abi == "v8")
    return std::make_unique<NetOf<NetV8, PropertiesV8>>(static_cast<NetV8*>(table), communicator);
  if (abi == "v9")
    return std::make_unique<NetOf<NetV9, PropertiesV9>>(static_cast<NetV9*>(table), communicator);
  if (abi == "v10")
    return std::make_unique<NetOf<NetV10, PropertiesV9>>(static_cast<NetV10*>(table), communicator);
  if (abi == "v11")
    return std::make_unique<NetOf<NetV11, PropertiesV11>>(static_cast<NetV11*>(table), communicator);
  if (abi == "v12")
    return std::make_unique<NetOf<NetV12, PropertiesV12>>(static_cast<NetV12*>(table), communicator);
  throw std::runtime_error("--abi " + abi + ": v6 to v12 are known");
}

}  // namespace fabricpulse::ring
