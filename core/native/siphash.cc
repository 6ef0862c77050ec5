// SipHash-2-4 for Python: names as 64 bits, tags of datagrams.
#include "fabricpulse/siphash.h"

#include <nanobind/nanobind.h>

#include <cstdint>

#include "python_module.h"

namespace nb = nanobind;

NB_MODULE(_siphash, m) {
  m.def("siphash24", [](nb::bytes key, nb::bytes data) {
    return fabricpulse::siphash24(fabricpulse::to_key(key),
                                  reinterpret_cast<const std::uint8_t*>(data.c_str()), data.size());
  });
}
