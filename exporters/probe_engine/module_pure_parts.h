#ifndef FABRICPULSE_EXPORTERS_MODULE_PURE_PARTS_H_
#define FABRICPULSE_EXPORTERS_MODULE_PURE_PARTS_H_

#include <nanobind/nanobind.h>

namespace fabricpulse {

// Adds the engine's pure parts (clocks, states of health, trains, the parser) to the module, each without sockets and
// time: for the tests.
void bind_pure_parts(nanobind::module_& m);

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_MODULE_PURE_PARTS_H_
