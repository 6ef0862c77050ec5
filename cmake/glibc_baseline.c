// Lets binaries that are built on a new system run with glibc 2.28 (Debian 10, RHEL 8, Ubuntu 20.04): job
// containers are older than the machines that build for them.
//
// A linker binds a symbol to its newest version. Most of the newer versions of what we use are the old function
// under a new name: glibc 2.34 moved libpthread and libdl into libc, 2.33 made stat a symbol of its own, 2.29
// changed how exp2 reports errors. The linker's --wrap (glibc_baseline.cmake has the list) sends every reference,
// those of the static libstdc++ and libgcc included, to __wrap_NAME here, which goes to the old version.
// What 2.28 does not have at all is implemented by what it has.
//
// tests/unit/core/test_glibc_baseline.py reads the binaries and names each symbol that is too new.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

// The oldest version of a symbol that has always been there.
#if defined(__x86_64__)
#define FIRST "GLIBC_2.2.5"
#define SINCE_2_12 "GLIBC_2.12"
#elif defined(__aarch64__)
#define FIRST "GLIBC_2.17"
#define SINCE_2_12 "GLIBC_2.17"
#else
#error "glibc_baseline: no symbol versions for this architecture"
#endif

#define VERSIONED(result, name, version, parameters) \
  __asm__(".symver old_" #name "," #name "@" version); \
  extern result old_##name parameters;               \
  result __wrap_##name parameters;                   \
  result __wrap_##name parameters

VERSIONED(int, pthread_create, FIRST, (pthread_t* t, const pthread_attr_t* a, void* (*f)(void*), void* x)) {
  return old_pthread_create(t, a, f, x);
}
VERSIONED(int, pthread_join, FIRST, (pthread_t t, void** r)) { return old_pthread_join(t, r); }
VERSIONED(int, pthread_detach, FIRST, (pthread_t t)) { return old_pthread_detach(t); }
VERSIONED(int, pthread_once, FIRST, (pthread_once_t* o, void (*f)(void))) { return old_pthread_once(o, f); }
VERSIONED(int, pthread_key_create, FIRST, (pthread_key_t* k, void (*f)(void*))) {
  return old_pthread_key_create(k, f);
}
VERSIONED(int, __pthread_key_create, FIRST, (pthread_key_t* k, void (*f)(void*))) {
  return old___pthread_key_create(k, f);
}
VERSIONED(int, pthread_key_delete, FIRST, (pthread_key_t k)) { return old_pthread_key_delete(k); }
VERSIONED(void*, pthread_getspecific, FIRST, (pthread_key_t k)) { return old_pthread_getspecific(k); }
VERSIONED(int, pthread_setspecific, FIRST, (pthread_key_t k, const void* v)) {
  return old_pthread_setspecific(k, v);
}
VERSIONED(int, pthread_mutex_trylock, FIRST, (pthread_mutex_t* m)) { return old_pthread_mutex_trylock(m); }
VERSIONED(int, pthread_mutexattr_init, FIRST, (pthread_mutexattr_t* a)) {
  return old_pthread_mutexattr_init(a);
}
VERSIONED(int, pthread_mutexattr_destroy, FIRST, (pthread_mutexattr_t* a)) {
  return old_pthread_mutexattr_destroy(a);
}
VERSIONED(int, pthread_sigmask, FIRST, (int how, const sigset_t* set, sigset_t* old)) {
  return old_pthread_sigmask(how, set, old);
}
VERSIONED(int, pthread_getcpuclockid, FIRST, (pthread_t t, clockid_t* c)) {
  return old_pthread_getcpuclockid(t, c);
}
#if defined(__x86_64__)
VERSIONED(int, pthread_mutexattr_setprotocol, "GLIBC_2.4", (pthread_mutexattr_t* a, int p)) {
  return old_pthread_mutexattr_setprotocol(a, p);
}
#else
VERSIONED(int, pthread_mutexattr_setprotocol, FIRST, (pthread_mutexattr_t* a, int p)) {
  return old_pthread_mutexattr_setprotocol(a, p);
}
#endif
VERSIONED(int, pthread_setname_np, SINCE_2_12, (pthread_t t, const char* n)) {
  return old_pthread_setname_np(t, n);
}
VERSIONED(void*, dlopen, FIRST, (const char* f, int m)) { return old_dlopen(f, m); }
VERSIONED(void*, dlsym, FIRST, (void* h, const char* n)) { return old_dlsym(h, n); }
VERSIONED(void*, dlvsym, FIRST, (void* h, const char* n, const char* v)) { return old_dlvsym(h, n, v); }
VERSIONED(int, dlclose, FIRST, (void* h)) { return old_dlclose(h); }
VERSIONED(char*, dlerror, FIRST, (void)) { return old_dlerror(); }
VERSIONED(double, exp2, FIRST, (double x)) { return old_exp2(x); }
VERSIONED(double, log2, FIRST, (double x)) { return old_log2(x); }
VERSIONED(double, exp, FIRST, (double x)) { return old_exp(x); }
VERSIONED(double, log, FIRST, (double x)) { return old_log(x); }
VERSIONED(double, pow, FIRST, (double x, double y)) { return old_pow(x, y); }

// Since 2.33 symbols; before, inline functions over __xstat. The kernel's structure is the library's on both
// architectures.
int __wrap_fstatat(int folder, const char* path, struct stat* out, int flags);
int __wrap_fstatat(int folder, const char* path, struct stat* out, int flags) {
  return (int)syscall(SYS_newfstatat, folder, path, out, flags);
}
int __wrap_stat(const char* path, struct stat* out);
int __wrap_stat(const char* path, struct stat* out) { return __wrap_fstatat(AT_FDCWD, path, out, 0); }
int __wrap_lstat(const char* path, struct stat* out);
int __wrap_lstat(const char* path, struct stat* out) {
  return __wrap_fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
int __wrap_fstat(int fd, struct stat* out);
int __wrap_fstat(int fd, struct stat* out) { return __wrap_fstatat(fd, "", out, AT_EMPTY_PATH); }
// Its name where Python's headers ask for large files; on both architectures `struct stat` is the same.
int __wrap_fstat64(int fd, struct stat* out);
int __wrap_fstat64(int fd, struct stat* out) { return __wrap_fstat(fd, out); }

// 2.36, used by libstdc++'s random_device alone.
uint32_t __wrap_arc4random(void);
uint32_t __wrap_arc4random(void) {
  uint32_t value;
  while (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value))
    if (errno != EINTR) abort();
  return value;
}

// 2.32: lets libstdc++ count references without atomics. "Not known to be single-threaded" is always right.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

// 2.30, by its elder sister: a step of the host's clock may make the wait shorter or longer, and whoever waits on a
// condition looks at it again.
int __wrap_pthread_cond_clockwait(pthread_cond_t* c, pthread_mutex_t* m, clockid_t clock,
                                  const struct timespec* until);
int __wrap_pthread_cond_clockwait(pthread_cond_t* c, pthread_mutex_t* m, clockid_t clock,
                                  const struct timespec* until) {
  struct timespec now, real;
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(c, m, until);
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  int64_t left = (int64_t)(until->tv_sec - now.tv_sec) * 1000000000 + (until->tv_nsec - now.tv_nsec);
  int64_t at = (int64_t)real.tv_sec * 1000000000 + real.tv_nsec + (left > 0 ? left : 0);
  struct timespec limit = {at / 1000000000, at % 1000000000};
  return pthread_cond_timedwait(c, m, &limit);
}

// 2.38: the same functions, which also know the binary numbers of C23 (0b101). Headers send strtol there.
#define WITHOUT_C23(result, name)                                                          \
  __asm__(".symver old_" #name "," #name "@" FIRST);                                       \
  extern result old_##name(const char* text, char** end, int base);                        \
  result __wrap___isoc23_##name(const char* text, char** end, int base);                   \
  result __wrap___isoc23_##name(const char* text, char** end, int base) {                  \
    return old_##name(text, end, base);                                                    \
  }                                                                                        \
  _Static_assert(1, "a semicolon follows")
WITHOUT_C23(long, strtol);
WITHOUT_C23(unsigned long, strtoul);
WITHOUT_C23(long long, strtoll);
WITHOUT_C23(unsigned long long, strtoull);

// 2.35: finds the unwind table of the object that holds an address; libgcc 12 and newer asks for it when an
// exception is thrown. Layout: struct dl_find_object of <dlfcn.h>, glibc 2.35.
struct found_object {
  unsigned long long flags;
  void *map_start, *map_end, *link_map, *eh_frame;
  unsigned long long reserved[7];
};
struct object_search {
  uintptr_t address;
  struct found_object* out;
};
static int match_object(struct dl_phdr_info* info, size_t size, void* data) {
  struct object_search* search = data;
  (void)size;
  const ElfW(Phdr)* table = NULL;
  uintptr_t start = UINTPTR_MAX, end = 0;
  int inside = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* header = &info->dlpi_phdr[i];
    uintptr_t at = info->dlpi_addr + header->p_vaddr;
    if (header->p_type == PT_GNU_EH_FRAME) table = header;
    if (header->p_type != PT_LOAD) continue;
    if (at < start) start = at;
    if (at + header->p_memsz > end) end = at + header->p_memsz;
    if (search->address >= at && search->address < at + header->p_memsz) inside = 1;
  }
  if (!inside) return 0;
  if (table == NULL) return -1;
  search->out->flags = 0;
  search->out->map_start = (void*)start;
  search->out->map_end = (void*)end;
  search->out->link_map = NULL;
  search->out->eh_frame = (void*)(info->dlpi_addr + table->p_vaddr);
  return 1;
}
int __wrap__dl_find_object(void* address, struct found_object* out);
int __wrap__dl_find_object(void* address, struct found_object* out) {
  struct object_search search = {(uintptr_t)address, out};
  return dl_iterate_phdr(match_object, &search) == 1 ? 0 : -1;
}
