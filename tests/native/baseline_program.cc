// What a program that is linked for an old glibc (cmake/glibc_baseline.cmake) must still be able to do.
#include <math.h>
#include <pthread.h>
#include <sys/stat.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

namespace {

struct Constructed {
  Constructed() : value(42) {}
  int value;
} constructed;  // before main

bool require(bool held, const char* what) {
  if (!held) fprintf(stderr, "failed: %s\n", what);
  return held;
}

bool catches() {
  try {
    throw std::runtime_error("thrown");
  } catch (const std::exception& error) {
    return error.what()[0] == 't';
  }
}

bool waits() {
  std::mutex lock;
  std::condition_variable condition;
  std::unique_lock<std::mutex> held(lock);
  bool woken = false;
  auto before = std::chrono::steady_clock::now();
  bool late = !condition.wait_for(held, std::chrono::milliseconds(50), [&] { return woken; });
  bool waited = std::chrono::steady_clock::now() - before >= std::chrono::milliseconds(49);
  std::thread other([&] {
    std::lock_guard<std::mutex> guard(lock);
    woken = true;
    condition.notify_one();
  });
  bool notified = condition.wait_for(held, std::chrono::seconds(60), [&] { return woken; });
  held.unlock();
  other.join();
  return late && waited && notified;
}

}  // namespace

int main(int argc, char** argv) {
  struct stat status;
  std::random_device device;
  auto shared = std::make_shared<int>(1);
  auto other = shared;  // NOLINT(performance-unnecessary-copy-initialization): it counts below
  bool good = require(argc == 2, "arguments");
  good &= require(constructed.value == 42, "constructors run before main");
  good &= require(catches(), "an exception is caught");
  std::thread([&] { good &= require(catches(), "an exception is caught in a thread"); }).join();
  good &= require(waits(), "a condition is waited for");
  good &= require(stat(argv[1], &status) == 0 && status.st_size == 5, "stat");
  good &= require(lstat(argv[1], &status) == 0 && S_ISREG(status.st_mode), "lstat");
  good &= require(stat("/nonexistent", &status) != 0, "stat of nothing");
  good &= require(exp2(static_cast<double>(argc)) == 4.0 && log2(1.0 * argc) == 1.0, "exp2 and log2");
  // NOLINTNEXTLINE(misc-redundant-expression): each call gives another number
  good &= require(device() != device() || device() != device(), "random numbers");
  good &= require(shared.use_count() == 2, "shared_ptr");
  return good ? 0 : 1;
}
