// A mutex whose owner inherits the priority of whoever waits for it.
#ifndef FABRICPULSE_EXPORTERS_PRIORITY_MUTEX_H_
#define FABRICPULSE_EXPORTERS_PRIORITY_MUTEX_H_

#include <pthread.h>

namespace fabricpulse {

class PriorityMutex {
 public:
  PriorityMutex() {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&mutex_, &attributes);
    pthread_mutexattr_destroy(&attributes);
  }
  ~PriorityMutex() { pthread_mutex_destroy(&mutex_); }
  PriorityMutex(const PriorityMutex&) = delete;
  PriorityMutex& operator=(const PriorityMutex&) = delete;
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_;
};

}  // namespace fabricpulse

#endif  // FABRICPULSE_EXPORTERS_PRIORITY_MUTEX_H_
