# fabricpulse_glibc_baseline(TARGET): binaries that need no glibc newer than 2.28 and no libstdc++ at run time, wherever
# they are built (glibc_baseline.c says how). Not for builds with a sanitizer, whose run-time library is as new as the
# compiler. Elsewhere than on glibc (x86_64, aarch64) it does nothing.
include_guard(GLOBAL)
include(CheckCSourceCompiles)

check_c_source_compiles("
#include <features.h>
#if !defined(__GLIBC__) || !(defined(__x86_64__) || defined(__aarch64__))
#error no symbol versions
#endif
int main(void) { return 0; }" FABRICPULSE_HAS_GLIBC_VERSIONS)

# Functions of which glibc has a version that is newer than 2.28.
set(fabricpulse_wrapped
  pthread_create pthread_join pthread_detach pthread_once pthread_key_create __pthread_key_create pthread_key_delete
  pthread_getspecific pthread_setspecific pthread_mutex_trylock pthread_mutexattr_init pthread_mutexattr_destroy
  pthread_mutexattr_setprotocol pthread_sigmask pthread_getcpuclockid pthread_setname_np pthread_cond_clockwait
  dlopen dlsym dlvsym dlclose dlerror exp2 log2 exp log pow fstatat stat lstat fstat fstat64 arc4random _dl_find_object
  __isoc23_strtol __isoc23_strtoul __isoc23_strtoll __isoc23_strtoull)
set(fabricpulse_baseline_dir ${CMAKE_CURRENT_LIST_DIR})

function(fabricpulse_glibc_baseline target)
  if(NOT FABRICPULSE_HAS_GLIBC_VERSIONS OR FABRICPULSE_SANITIZE)
    return()
  endif()
  set(baseline ${fabricpulse_baseline_dir}/glibc_baseline.c)
  set(wrapped ${fabricpulse_wrapped})
  get_target_property(kind ${target} TYPE)
  if(kind STREQUAL "EXECUTABLE")
    list(APPEND baseline ${fabricpulse_baseline_dir}/glibc_baseline_program.c)
    list(APPEND wrapped __libc_start_main)
  endif()
  # The compiler may not take exp2(x) for what it knows it to be, nor inline one into the other.
  set_source_files_properties(${baseline} PROPERTIES COMPILE_OPTIONS "-fvisibility=hidden;-fno-builtin;-fno-lto"
    TARGET_DIRECTORY ${target})
  target_sources(${target} PRIVATE ${baseline})
  list(TRANSFORM wrapped PREPEND "-Wl,--wrap=")
  target_link_options(${target} PRIVATE ${wrapped} -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL)
  # What is one library since 2.34 was several before; they are still there, empty.
  target_link_libraries(${target} PRIVATE -Wl,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -lm -Wl,--as-needed)
endfunction()
