// The functions that take the places of the provider's.
#ifndef FABRICPULSE_INTERPOSER_HOOKS_H_
#define FABRICPULSE_INTERPOSER_HOOKS_H_

#include "abi_ex.h"

namespace fabricpulse::interposer {

// What was there before is in the object's entry of the Interposer; only `before` has to be filled here.
struct Hooks {
  static void patch(ib::Context* context);
  static void patch(ib::CompletionQueueEx* queue);
  static void patch(ib::QueuePairEx* pair, ib::QueuePairEx* before);
};

}  // namespace fabricpulse::interposer

#endif  // FABRICPULSE_INTERPOSER_HOOKS_H_
