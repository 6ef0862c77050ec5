// What the native modules for Python have in common: how they take keys, and raise what the system refuses.
#ifndef FABRICPULSE_CORE_PYTHON_MODULE_H_
#define FABRICPULSE_CORE_PYTHON_MODULE_H_

#include <nanobind/nanobind.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <system_error>

#include "fabricpulse/siphash.h"

namespace fabricpulse {

// Throws std::invalid_argument, in Python ValueError, for any other length than 16.
inline SipKey to_key(const nanobind::bytes& raw) {
  if (raw.size() != 16) throw std::invalid_argument("a key has 16 bytes");
  SipKey key;
  std::memcpy(key.data(), raw.c_str(), key.size());
  return key;
}

// For the body of NB_MODULE: a std::system_error becomes an OSError with its number, and with what() in the
// place of the file's name.
inline void raise_os_errors() {
  nanobind::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
      errno = error.code().value();
      PyErr_SetFromErrnoWithFilename(PyExc_OSError, error.what());
    }
  });
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_PYTHON_MODULE_H_
