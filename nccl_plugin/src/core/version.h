#ifndef FABRICPULSE_CORE_VERSION_H_
#define FABRICPULSE_CORE_VERSION_H_

namespace fabricpulse {

constexpr const char* kPluginVersion = FABRICPULSE_VERSION;  // of pyproject.toml

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_VERSION_H_
