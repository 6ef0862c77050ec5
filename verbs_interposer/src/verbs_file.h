// The telemetry file of this process (fabricpulse/verbs_telemetry.h) and the slots of its tables.
//
// Records lie in memory of this process until a file is there, and again in a child of fork(), whose parent owns the
// file: pointers to records stay valid all the time.
#ifndef FABRICPULSE_INTERPOSER_VERBS_FILE_H_
#define FABRICPULSE_INTERPOSER_VERBS_FILE_H_

#include <cstdint>
#include <mutex>
#include <string>

#include "fabricpulse/verbs_telemetry.h"
#include "job/environment.h"

namespace fabricpulse::interposer {

// Of the environment.
struct Settings : ProcessSettings {
  uint64_t sample_every = 16;  // FABRICPULSE_VERBS_SAMPLE
  // complaint : as in job/environment.h
  static Settings from_environment(std::string* complaint);
};

// Not thread-safe but for sample() and the records; the interposer's lock is for the rest.
class VerbsFile {
 public:
  static constexpr uint32_t kDevices = 64, kQueuePairs = 4096, kTotals = 1024, kSamples = 8192;

  // Room for the records. Raises std::bad_alloc.
  VerbsFile();
  ~VerbsFile();
  VerbsFile(const VerbsFile&) = delete;
  VerbsFile& operator=(const VerbsFile&) = delete;

  // Puts a file below the records. Where none can be made they are not published; the caller is not affected.
  void publish(const Settings& settings, const char* suffix);
  // In a child of fork(): records become the child's own, and empty. Async-signal-safe.
  void leave_to_parent();
  // At the end of the process: the file stays for a while, with the last counts.
  void finish();

  fp_verbs_header* header() { return header_; }
  // Index of the record of a device; UINT32_MAX when there is no room.
  uint32_t device(const char* name);
  // A free record, zeroed but for sequence and generation. nullptr when there is no room.
  fp_verbs_queue_pair* take_queue_pair();
  // Frees it; its counters move to the totals, if they are to be kept.
  void drop_queue_pair(fp_verbs_queue_pair* record, bool keep);
  void sample(const fp_verbs_sample& sample);

 private:
  static size_t size();
  void fill_header(const Settings& settings);
  void add_to_total(const fp_verbs_queue_pair& record);

  uint8_t* map_ = nullptr;
  int fd_ = -1;
  fp_verbs_header* header_ = nullptr;
  fp_verbs_device* devices_ = nullptr;
  fp_verbs_queue_pair* queue_pairs_ = nullptr;
  fp_verbs_total* totals_ = nullptr;
  fp_verbs_sample* samples_ = nullptr;
  bool taken_[kQueuePairs] = {};  // not in the file: a child's is empty
  uint32_t next_ = 0;
  std::mutex sample_lock_;
};

}  // namespace fabricpulse::interposer

#endif  // FABRICPULSE_INTERPOSER_VERBS_FILE_H_
