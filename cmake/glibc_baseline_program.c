// The part of glibc_baseline.c that only programs have: how main is called (__libc_start_main, glibc 2.34).
//
// The old version runs the constructors of the program only if it is given how; the new library does so under its old
// version, too.
#if defined(__x86_64__)
__asm__(".symver old_start_main,__libc_start_main@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver old_start_main,__libc_start_main@GLIBC_2.17");
#endif

typedef int main_function(int, char**, char**);
typedef void constructor(int, char**, char**);

extern constructor* __preinit_array_start[] __attribute__((visibility("hidden")));
extern constructor* __preinit_array_end[] __attribute__((visibility("hidden")));
extern constructor* __init_array_start[] __attribute__((visibility("hidden")));
extern constructor* __init_array_end[] __attribute__((visibility("hidden")));
extern void _init(void);

static int construct(int argc, char** argv, char** env) {
  for (constructor** at = __preinit_array_start; at < __preinit_array_end; ++at) (*at)(argc, argv, env);
  _init();
  for (constructor** at = __init_array_start; at < __init_array_end; ++at) (*at)(argc, argv, env);
  return 0;
}

extern int old_start_main(main_function*, int, char**, main_function*, void (*)(void), void (*)(void), void*);
int __wrap___libc_start_main(main_function*, int, char**, main_function*, void (*)(void), void (*)(void), void*);
int __wrap___libc_start_main(main_function* main, int argc, char** argv, main_function* init, void (*fini)(void),
                             void (*loader_fini)(void), void* stack_end) {
  return old_start_main(main, argc, argv, init ? init : construct, fini, loader_fini, stack_end);
}
