// NCCL's logger, as given to init().
#ifndef FABRICPULSE_CORE_LOG_H_
#define FABRICPULSE_CORE_LOG_H_

namespace fabricpulse {

enum class LogLevel : int { kNone = 0, kVersion = 1, kWarn = 2, kInfo = 3, kAbort = 4, kTrace = 5 };

using LogFunction = void (*)(int level, unsigned long flags, const char* file, int line, const char* format,
                             ...);

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_LOG_H_
