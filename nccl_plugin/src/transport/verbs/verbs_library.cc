#include "transport/verbs/verbs_library.h"

#include <dlfcn.h>

namespace fabricpulse {

bool VerbsLibrary::open(const std::string& name, std::string* error) {
  const char* file = name.empty() ? "libibverbs.so.1" : name.c_str();
  void* library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    *error = std::string("libibverbs cannot be loaded (") + (why != nullptr ? why : file) +
             "): install libibverbs1 and ibverbs-providers (rdma-core)";
    return false;
  }
  std::string missing;
  // The default version of a symbol may be older than the one whose structures are meant: name it. A library
  // without versions is taken as it is.
  auto find = [&](auto* function, const char* symbol, const char* version, bool needed = true) {
    void* found = dlvsym(library, symbol, version);
    if (found == nullptr) found = dlsym(library, symbol);
    if (found == nullptr && needed) missing += (missing.empty() ? "" : ", ") + std::string(symbol);
    *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(found);
  };
  constexpr const char* k1 = "IBVERBS_1.1";
  find(&get_device_list, "ibv_get_device_list", k1);
  find(&free_device_list, "ibv_free_device_list", k1);
  find(&get_device_name, "ibv_get_device_name", k1);
  find(&open_device, "ibv_open_device", k1);
  find(&close_device, "ibv_close_device", k1);
  find(&query_port, "ibv_query_port", k1);
  find(&query_gid, "ibv_query_gid", k1);
  find(&query_gid_table, "_ibv_query_gid_table", "IBVERBS_1.11", false);
  find(&alloc_pd, "ibv_alloc_pd", k1);
  find(&dealloc_pd, "ibv_dealloc_pd", k1);
  find(&reg_mr, "ibv_reg_mr", k1);
  find(&dereg_mr, "ibv_dereg_mr", k1);
  find(&create_cq, "ibv_create_cq", k1);
  find(&destroy_cq, "ibv_destroy_cq", k1);
  find(&create_qp, "ibv_create_qp", k1);
  find(&modify_qp, "ibv_modify_qp", k1);
  find(&destroy_qp, "ibv_destroy_qp", k1);
  find(&get_async_event, "ibv_get_async_event", k1);
  find(&ack_async_event, "ibv_ack_async_event", k1);
  find(&fork_init, "ibv_fork_init", k1);
  if (!missing.empty()) {
    *error = std::string(file) + " lacks " + missing + ": a newer rdma-core is needed";
    return false;
  }
  // Memory that is registered must not move away under a child of fork() (data loaders).
  (void)fork_init();
  return true;
}

}  // namespace fabricpulse
