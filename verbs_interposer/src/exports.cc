// The functions of libibverbs that this library has in its place (exports.map). All others are the real library's own:
// with LD_PRELOAD the dynamic linker looks there next, and the copy for NCCL depends on it, where dlvsym() looks next.
#include <dlfcn.h>

#include <cerrno>

#include "interposer.h"
#include "job/environment.h"

#define FP_EXPORT extern "C" __attribute__((visibility("default")))

namespace fabricpulse::interposer {
namespace {

// RTLD_NEXT would not find a library that a plugin of the program has opened for itself.
const RealLibrary& real() {
  static const RealLibrary library = [] {
    RealLibrary made;
    const char* wanted = environment_text("FABRICPULSE_IBVERBS");
    void* handle = dlopen(wanted != nullptr ? wanted : "libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) return made;
    auto find = [&](auto* function, const char* symbol, const char* version) {
      void* found = dlvsym(handle, symbol, version);
      // A library without versions, of tests.
      if (found == nullptr && wanted != nullptr) found = dlsym(handle, symbol);
      *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(found);
    };
    constexpr const char* k1 = "IBVERBS_1.1";
    find(&made.open_device, "ibv_open_device", k1);
    find(&made.import_device, "ibv_import_device", "IBVERBS_1.10");
    find(&made.close_device, "ibv_close_device", k1);
    find(&made.get_device_name, "ibv_get_device_name", k1);
    find(&made.query_gid, "ibv_query_gid", k1);
    find(&made.create_qp, "ibv_create_qp", k1);
    find(&made.modify_qp, "ibv_modify_qp", k1);
    find(&made.destroy_qp, "ibv_destroy_qp", k1);
    find(&made.destroy_cq, "ibv_destroy_cq", k1);
    find(&made.qp_to_qp_ex, "ibv_qp_to_qp_ex", "IBVERBS_1.6");
    if (made.open_device != nullptr && Interposer::get() != nullptr)
      Interposer::get()->start(made, FABRICPULSE_VERBS_COPY);
    return made;
  }();
  return library;
}

ib::Context* opened(ib::Context* context) {
  Interposer* one = Interposer::get();
  if (context != nullptr && one != nullptr) one->adopt(context);
  return context;
}

// Calls what ends an object, and drops the object if that went well.
template <typename Object>
int end(int (*call)(Object*), Object* object) {
  if (call == nullptr) return ENOSYS;
  Interposer* one = Interposer::get();
  auto* entry = one == nullptr ? nullptr : one->detach(object);
  const int result = call(object);
  if (entry != nullptr) {
    if (result == 0) {
      one->drop(entry);
    } else {
      one->reattach(entry);
    }
  }
  return result;
}

__attribute__((destructor)) void at_exit() {
  // Not Interposer::get(): a program that never opened a device needs none.
  if (Interposer::started()) Interposer::get()->finish();
}

}  // namespace
}  // namespace fabricpulse::interposer

namespace ip = fabricpulse::interposer;
namespace ib = fabricpulse::ib;

FP_EXPORT ib::Context* ibv_open_device(ib::Device* device) {
  if (ip::real().open_device == nullptr) {
    errno = ENOSYS;
    return nullptr;
  }
  return ip::opened(ip::real().open_device(device));
}

FP_EXPORT ib::Context* ibv_import_device(int command_fd) {
  if (ip::real().import_device == nullptr) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return ip::opened(ip::real().import_device(command_fd));
}

FP_EXPORT int ibv_close_device(ib::Context* context) { return ip::end(ip::real().close_device, context); }

FP_EXPORT ib::QueuePair* ibv_create_qp(ib::ProtectionDomain* domain, ib::QueuePairInit* init) {
  if (ip::real().create_qp == nullptr) {
    errno = ENOSYS;
    return nullptr;
  }
  ib::QueuePair* made = ip::real().create_qp(domain, init);
  ip::Interposer* one = ip::Interposer::get();
  if (made != nullptr && one != nullptr) one->adopt(made, init);
  return made;
}

FP_EXPORT int ibv_modify_qp(ib::QueuePair* pair, ib::QueuePairAttributes* attributes, int mask) {
  if (ip::real().modify_qp == nullptr) return ENOSYS;
  const int result = ip::real().modify_qp(pair, attributes, mask);
  ip::Interposer* one = ip::Interposer::get();
  if (result == 0 && one != nullptr) one->modified(pair, *attributes, mask);
  return result;
}

FP_EXPORT int ibv_destroy_qp(ib::QueuePair* pair) { return ip::end(ip::real().destroy_qp, pair); }

FP_EXPORT int ibv_destroy_cq(ib::CompletionQueue* queue) { return ip::end(ip::real().destroy_cq, queue); }
