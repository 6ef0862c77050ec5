// Writer of <run>/plugin/<name>.telemetry (layout: fabricpulse/plugin_telemetry.h).
//
// Records are written in place by the holder of the lock of the object they describe. An object that finds
// its table full, or a process without a file (no permission, telemetry off), writes to a private record: no
// branch on the way.
#ifndef FABRICPULSE_CORE_TELEMETRY_H_
#define FABRICPULSE_CORE_TELEMETRY_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "core/config.h"
#include "core/quick_lock.h"
#include "fabricpulse/plugin_telemetry.h"
#include "job/records.h"

namespace fabricpulse {

struct EventFields {
  fp_event_kind kind;
  fp_lane_reason reason = FP_REASON_NONE;
  uint32_t connection = UINT32_MAX;
  uint32_t lane = UINT32_MAX;
  uint32_t device = UINT32_MAX;
  uint32_t epoch = 0;
  uint64_t connection_id = 0;
  uint64_t value = 0;
  const char* peer = "";
  const char* peer_device = "";
};

// When something was, on all clocks. fleet_ns 0: there was no fleet time.
struct EventTime {
  int64_t host_ns = 0;
  uint64_t mono_ns = 0;
  int64_t fleet_ns = 0;
  uint64_t fleet_bound_ns = 0;
};

class Telemetry {
 public:
  Telemetry() = default;
  ~Telemetry() { close(); }
  Telemetry(const Telemetry&) = delete;
  Telemetry& operator=(const Telemetry&) = delete;

  // Makes the file. Without it (no permission, no space) everything works on private memory; `complaint` tells
  // why.
  void open(const Config& config, const std::string& version, std::string* complaint);
  // Removes the file.
  void close();
  const std::string& path() const { return path_; }
  fp_plugin_header* header() { return header_; }

  fp_plugin_device* device(uint32_t index) { return index < kDevices ? &devices_[index] : &spare_device_; }
  // A free record, or a private one if the table is full. index: UINT32_MAX for a private one.
  fp_plugin_connection* take_connection(uint32_t* index);
  fp_plugin_lane* take_lane(uint32_t* index);
  // Moves the lane's totals to its pair and frees the record.
  void drop_lane(fp_plugin_lane* record, uint32_t index);
  void drop_connection(fp_plugin_connection* record, uint32_t index);
  fp_plugin_collective* take_collective(uint64_t communicator, uint32_t rank, uint32_t ranks,
                                        const char* function, const char* algorithm, const char* protocol);

  const fp_plugin_collective* collective(uint32_t index) const {
    return index < kCollectives ? &collectives_[index] : nullptr;
  }
  uint32_t collective_index(const fp_plugin_collective* record) const {
    return static_cast<uint32_t>(record - collectives_);
  }

  void event(const EventFields& fields, const EventTime& time);
  // Copies event `index`. False if it was overwritten or is not there yet.
  bool read_event(uint64_t index, fp_plugin_event* out) const;
  uint64_t events_next() const { return __atomic_load_n(&header_->events_next, __ATOMIC_ACQUIRE); }

  // A collective of this record has ended.
  void operation(const fp_plugin_collective& record, uint64_t number, uint64_t bytes, uint64_t took_ns,
                 const EventTime& end);

  static constexpr uint32_t kDevices = 16, kConnections = 1024, kLanes = 4096, kPairs = 1024,
                            kCollectives = 256, kEvents = 4096, kOperations = 2048;

 private:
  void lay_out(uint8_t* base);
  static size_t file_size();

  uint8_t* map_ = nullptr;  // shared, or private memory of the same layout
  bool shared_ = false;
  std::string path_;
  fp_plugin_header* header_ = nullptr;
  fp_plugin_device* devices_ = nullptr;
  fp_plugin_connection* connections_ = nullptr;
  fp_plugin_lane* lanes_ = nullptr;
  fp_plugin_pair* pairs_ = nullptr;
  fp_plugin_collective* collectives_ = nullptr;
  fp_plugin_event* events_ = nullptr;
  fp_plugin_job* job_ = nullptr;
  fp_plugin_operation* operations_ = nullptr;
  fp_plugin_device spare_device_{};
  std::mutex tables_;  // births and deaths
  std::mutex event_lock_;
  QuickLock operation_lock_;
  uint64_t operations_next_ = 0;
  uint32_t next_connection_ = 0, next_lane_ = 0;
};

// Index of the bucket that a delay falls into, for the bounds that the header shows.
uint32_t delay_bucket(uint64_t delay_ns);

inline void delay_add(fp_delay_histogram* histogram, int64_t delay_ns) {
  uint64_t delay = delay_ns > 0 ? static_cast<uint64_t>(delay_ns) : 0;
  ++histogram->count;
  histogram->sum_ns += delay;
  ++histogram->buckets[delay_bucket(delay)];
}

}  // namespace fabricpulse

#endif  // FABRICPULSE_CORE_TELEMETRY_H_
