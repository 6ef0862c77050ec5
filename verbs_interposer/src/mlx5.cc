// Calls of libmlx5 by which a program goes around libibverbs: counted and reported, and passed on. A queue pair of
// mlx5dv_create_qp is posted to by ibv_wr_*, which is seen as any other. Only with LD_PRELOAD: a program that looks
// these functions up by itself does not find them here.
#include <dlfcn.h>

#include <cerrno>

#include "interposer.h"

#define FP_EXPORT extern "C" __attribute__((visibility("default")))

namespace fabricpulse::interposer {
namespace {

template <typename Function>
Function* mlx5(const char* symbol, const char* version) {
  void* library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlvsym(library, symbol, version));
}

// enum mlx5dv_obj_type: queue pair, completion queue, shared receive queue, receive work queue.
constexpr uint64_t kQueues = 1 | 2 | 4 | 8;

using InitObject = int(void* object, uint64_t type);

int init_object(InitObject* before, void* object, uint64_t type) {
  if (before == nullptr) return EOPNOTSUPP;
  if (type & kQueues && Interposer::started()) Interposer::get()->bypassed(FP_VERBS_BYPASS_DIRECT);
  return before(object, type);
}

}  // namespace
}  // namespace fabricpulse::interposer

namespace ip = fabricpulse::interposer;
namespace ib = fabricpulse::ib;

FP_EXPORT int fabricpulse_init_obj_1_0(void* object, uint64_t type) {
  static auto* const before = ip::mlx5<ip::InitObject>("mlx5dv_init_obj", "MLX5_1.0");
  return ip::init_object(before, object, type);
}
FP_EXPORT int fabricpulse_init_obj_1_2(void* object, uint64_t type) {
  static auto* const before = ip::mlx5<ip::InitObject>("mlx5dv_init_obj", "MLX5_1.2");
  return ip::init_object(before, object, type);
}
__asm__(".symver fabricpulse_init_obj_1_0, mlx5dv_init_obj@MLX5_1.0");
__asm__(".symver fabricpulse_init_obj_1_2, mlx5dv_init_obj@@MLX5_1.2");

FP_EXPORT ib::QueuePair* mlx5dv_create_qp(ib::Context* context, ib::QueuePairInit* init, void* more) {
  using Create = ib::QueuePair*(ib::Context*, ib::QueuePairInit*, void*);
  static auto* const before = ip::mlx5<Create>("mlx5dv_create_qp", "MLX5_1.3");
  if (before == nullptr) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  ib::QueuePair* made = before(context, init, more);
  if (made != nullptr && ip::Interposer::started()) ip::Interposer::get()->adopt(made, init);
  return made;
}

FP_EXPORT void* mlx5dv_devx_obj_create(ib::Context* context, const void* in, size_t in_bytes, void* out,
                                       size_t out_bytes) {
  using Create = void*(ib::Context*, const void*, size_t, void*, size_t);
  static auto* const before = ip::mlx5<Create>("mlx5dv_devx_obj_create", "MLX5_1.7");
  if (before == nullptr) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  if (ip::Interposer::started()) ip::Interposer::get()->bypassed(FP_VERBS_BYPASS_DEVX);
  return before(context, in, in_bytes, out, out_bytes);
}
