#include "process/nic_lookup.h"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "core/threads.h"

namespace fabricpulse {

void NicLookup::start() {
  try {
    thread_ = quiet_thread("fabricpulse-nic", [this] { run(); });
  } catch (const std::system_error&) {  // ask() answers itself
  }
}

void NicLookup::stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> held(lock_);
    stop_ = true;
  }
  asked_.notify_one();
  thread_.join();
}

void NicLookup::ask(uint32_t nics, bool scan) {
  if (nics == 0 && !scan) return;
  if (!thread_.joinable()) {
    Answers answers = look(nics, scan);
    std::lock_guard<std::mutex> held(lock_);
    keep(std::move(answers));
    return;
  }
  {
    std::lock_guard<std::mutex> held(lock_);
    wanted_ |= nics;
    scan_ |= scan;
  }
  asked_.notify_one();
}

NicLookup::Answers NicLookup::take() {
  std::lock_guard<std::mutex> held(lock_);
  return std::exchange(answers_, {});
}

NicLookup::Answers NicLookup::look(uint32_t nics, bool scan) const {
  Answers answers;
  for (uint32_t nic = 0; nic < nics_->count(); ++nic) {
    if (((nics >> nic) & 1) == 0) continue;
    Answer answer;
    answer.nic = nic;
    answer.found = nics_->info(nic);
    answer.there = transport_->look_up(&answer.found);
    answers.nics.push_back(std::move(answer));
  }
  if (scan) answers.others = transport_->discover(nics_->names());
  return answers;
}

void NicLookup::keep(Answers answers) {
  std::move(answers.nics.begin(), answers.nics.end(), std::back_inserter(answers_.nics));
  std::move(answers.others.begin(), answers.others.end(), std::back_inserter(answers_.others));
}

void NicLookup::run() {
  std::unique_lock<std::mutex> held(lock_);
  for (;;) {
    asked_.wait(held, [this] { return stop_ || wanted_ != 0 || scan_; });
    if (stop_) return;
    const uint32_t nics = std::exchange(wanted_, 0);
    const bool scan = std::exchange(scan_, false);
    held.unlock();
    try {
      Answers answers = look(nics, scan);
      held.lock();
      keep(std::move(answers));
      held.unlock();
    } catch (const std::exception&) {  // out of memory: the next poll asks again
      if (held.owns_lock()) held.unlock();
    }
    answered_();
    held.lock();
  }
}

}  // namespace fabricpulse
