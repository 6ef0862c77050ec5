// Pages that cannot be read or written while they are not the plugin's.
#ifndef FABRICPULSE_TESTS_NATIVE_PAGES_H_
#define FABRICPULSE_TESTS_NATIVE_PAGES_H_

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <string>

#include "core/lane.h"

namespace fabricpulse {

// Ends the program with a line of what broke.
[[noreturn]] inline void broken(const std::string& what) {
  fprintf(stderr, "%s\n", what.c_str());
  exit(1);
}

constexpr size_t kMost = 300'000;  // bytes

// Pages that are the application's or the plugin's.
class Pages {
 public:
  Pages() {
    void* made = mmap(nullptr, kMost, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) broken("no memory");
    data_ = static_cast<uint8_t*>(made);
    memory_ = {data_, kMost};
  }
  ~Pages() { munmap(data_, kMost); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  uint8_t* open() {
    if (mprotect(data_, kMost, PROT_READ | PROT_WRITE) != 0) broken("mprotect");
    return data_;
  }
  void give_back() {
    if (mprotect(data_, kMost, PROT_NONE) != 0) broken("mprotect");
  }
  uint8_t* data() { return data_; }
  const RegisteredMemory* memory() const { return &memory_; }

 private:
  uint8_t* data_ = nullptr;
  RegisteredMemory memory_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_TESTS_NATIVE_PAGES_H_
