#include "core/telemetry.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "core/monotonic.h"
#include "core/runtime.h"
#include "job/run_files.h"

namespace fabricpulse {
namespace {

// From a quiet rail to a lane that has long been failed; finest where a shaped or contended path lies (1-20
// ms).
constexpr uint64_t kBounds[FP_PLUGIN_DELAY_BOUNDS] = {
    1'000,      2'000,      5'000,       10'000,      20'000,      50'000,        100'000,      200'000,
    500'000,    1'000'000,  2'000'000,   3'000'000,   5'000'000,   7'500'000,     10'000'000,   15'000'000,
    20'000'000, 50'000'000, 100'000'000, 200'000'000, 500'000'000, 1'000'000'000, 2'000'000'000};

}  // namespace

uint32_t delay_bucket(uint64_t delay_ns) {
  return static_cast<uint32_t>(std::lower_bound(kBounds, kBounds + FP_PLUGIN_DELAY_BOUNDS, delay_ns) -
                               kBounds);
}

size_t Telemetry::file_size() {
  return aligned(sizeof(fp_plugin_header)) + aligned(sizeof(fp_plugin_device) * kDevices) +
         aligned(sizeof(fp_plugin_connection) * kConnections) + aligned(sizeof(fp_plugin_lane) * kLanes) +
         aligned(sizeof(fp_plugin_pair) * kPairs) + aligned(sizeof(fp_plugin_collective) * kCollectives) +
         aligned(sizeof(fp_plugin_event) * kEvents) + aligned(sizeof(fp_plugin_job)) +
         aligned(sizeof(fp_plugin_operation) * kOperations);
}

void Telemetry::lay_out(uint8_t* base) {
  map_ = base;
  header_ = reinterpret_cast<fp_plugin_header*>(base);
  size_t offset = aligned(sizeof(fp_plugin_header));
  auto table = [&](fp_plugin_table which, auto*& records, uint32_t capacity) {
    using Record = std::remove_reference_t<decltype(*records)>;
    records = reinterpret_cast<Record*>(base + offset);
    header_->tables[which] = {offset, sizeof(Record), capacity};
    offset += aligned(sizeof(Record) * capacity);
  };
  table(FP_TABLE_DEVICES, devices_, kDevices);
  table(FP_TABLE_CONNECTIONS, connections_, kConnections);
  table(FP_TABLE_LANES, lanes_, kLanes);
  table(FP_TABLE_PAIRS, pairs_, kPairs);
  table(FP_TABLE_COLLECTIVES, collectives_, kCollectives);
  table(FP_TABLE_EVENTS, events_, kEvents);
  table(FP_TABLE_JOB, job_, 1);
  table(FP_TABLE_OPERATIONS, operations_, kOperations);
}

void Telemetry::open(const Config& config, const std::string& version, std::string* complaint) {
  uint32_t pid = static_cast<uint32_t>(getpid());
  std::string directory = config.run_dir + "/plugin";
  std::string name = process_file_name();
  std::string final_path = directory + "/" + name + ".telemetry";
  std::optional<NewRunFile> file;
  void* map = MAP_FAILED;
  if (config.telemetry) {
    if (make_directories(directory)) {
      file.emplace(directory, name);
    }
    if (file && file->fd() >= 0) {
      // Allocated now: a full file system must not become a SIGBUS in the job later.
      errno = posix_fallocate(file->fd(), 0, static_cast<off_t>(file_size()));  // which does not set it
      if (errno == 0) map = mmap(nullptr, file_size(), PROT_READ | PROT_WRITE, MAP_SHARED, file->fd(), 0);
    }
    if (map == MAP_FAILED)
      *complaint += "no telemetry: cannot write " + final_path + ": " + strerror(errno) +
                    "; make room there or set FABRICPULSE_RUN_DIR to a directory of the job's user. ";
  }
  shared_ = map != MAP_FAILED;
  if (!shared_) map = mmap(nullptr, file_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) throw std::bad_alloc();
  lay_out(static_cast<uint8_t*>(map));
  header_->version = FP_PLUGIN_TELEMETRY_VERSION;
  header_->size = sizeof(fp_plugin_header);
  header_->file_size = file_size();
  header_->pid = pid;
  header_->rank = config.rank;
  header_->pid_start_ticks = process_start_ticks(pid);
  header_->telemetry_enabled = config.telemetry ? 1 : 0;
  copy_text(header_->host, config.host.c_str());
  copy_text(header_->workload, config.workload.c_str());
  job_->state = 1;
  job_->nodes = config.job.nodes;
  copy_text(job_->slurm_job, config.job.slurm_job.c_str());
  copy_text(job_->account, config.job.account.c_str());
  copy_text(job_->pod_name, config.job.pod_name.c_str());
  copy_text(job_->pod_namespace, config.job.pod_namespace.c_str());
  copy_text(job_->pod_uid, config.job.pod_uid.c_str());
  copy_text(header_->plugin_version, version.c_str());
  memcpy(header_->delay_bounds_ns, kBounds, sizeof(kBounds));
  // Who reads it before the first beat must not take the process for a dead one.
  header_->heartbeat_mono_ns = monotonic_ns();
  header_->magic = FP_PLUGIN_TELEMETRY_MAGIC;
  if (shared_) {
    if (file->put_in_place(final_path))
      path_ = final_path;
    else
      *complaint += "no telemetry: " + final_path + " cannot be put in place: " + strerror(errno) + ". ";
  }
}

void Telemetry::close() {
  if (map_ == nullptr) return;
  if (!path_.empty()) unlink(path_.c_str());
  path_.clear();
  munmap(map_, file_size());
  map_ = nullptr;
  header_ = nullptr;
}

fp_plugin_connection* Telemetry::take_connection(uint32_t* index) {
  std::lock_guard<std::mutex> lock(tables_);
  for (uint32_t n = 0; n < kConnections; ++n) {
    uint32_t i = (next_connection_ + n) % kConnections;
    if (connections_[i].state != 0) continue;
    next_connection_ = i + 1;
    fp_plugin_connection* record = &connections_[i];
    RecordChange<fp_plugin_connection> change(record);
    renew(record);
    record->state = 1;
    *index = i;
    return record;
  }
  ++header_->dropped_records;
  *index = UINT32_MAX;
  return new fp_plugin_connection{};
}

fp_plugin_lane* Telemetry::take_lane(uint32_t* index) {
  std::lock_guard<std::mutex> lock(tables_);
  for (uint32_t n = 0; n < kLanes; ++n) {
    uint32_t i = (next_lane_ + n) % kLanes;
    if (lanes_[i].state != FP_LANE_FREE) continue;
    next_lane_ = i + 1;
    TablesChange births(header_);
    fp_plugin_lane* record = &lanes_[i];
    RecordChange<fp_plugin_lane> change(record);
    renew(record);
    record->state = FP_LANE_CONNECTING;
    *index = i;
    return record;
  }
  ++header_->dropped_records;
  *index = UINT32_MAX;
  return new fp_plugin_lane{};
}

void Telemetry::drop_lane(fp_plugin_lane* record, uint32_t index) {
  if (index == UINT32_MAX) {
    delete record;
    return;
  }
  std::lock_guard<std::mutex> lock(tables_);
  TablesChange death(header_);
  fp_plugin_pair* pair = nullptr;
  for (uint32_t i = 0; i < kPairs && record->peer[0] != '\0'; ++i) {
    fp_plugin_pair* candidate = &pairs_[i];
    if (candidate->state == 0) {
      pair = candidate;
      RecordChange<fp_plugin_pair> change(pair);
      pair->state = 1;
      pair->device = record->device;
      pair->transport = record->transport;
      memcpy(pair->peer, record->peer, sizeof(pair->peer));
      memcpy(pair->peer_device, record->peer_device, sizeof(pair->peer_device));
      break;
    }
    if (candidate->device == record->device && candidate->transport == record->transport &&
        strcmp(candidate->peer, record->peer) == 0 &&
        strcmp(candidate->peer_device, record->peer_device) == 0) {
      pair = candidate;
      break;
    }
  }
  if (pair != nullptr) {
    RecordChange<fp_plugin_pair> change(pair);
    pair->sent_bytes += record->sent_bytes;
    pair->received_bytes += record->received_bytes;
    pair->sent_chunks += record->sent_chunks;
    pair->received_chunks += record->received_chunks;
    pair->resent_chunks += record->resent_chunks;
    pair->failovers += record->failovers;
    pair->stalls += record->stalls;
    pair->repaths += record->repaths;
    pair->retransmits += record->retransmits;
    pair->ecn_marked += record->ecn_marked;
    pair->corrupt_frames += record->corrupt_frames;
    pair->delay.count += record->delay.count;
    pair->delay.sum_ns += record->delay.sum_ns;
    for (uint32_t b = 0; b < FP_PLUGIN_DELAY_BUCKETS; ++b) pair->delay.buckets[b] += record->delay.buckets[b];
    if (record->delay_source != FP_DELAY_NONE) pair->delay_source = record->delay_source;
  }
  RecordChange<fp_plugin_lane> change(record);
  record->state = FP_LANE_FREE;
}

void Telemetry::drop_connection(fp_plugin_connection* record, uint32_t index) {
  if (index == UINT32_MAX) {
    delete record;
    return;
  }
  std::lock_guard<std::mutex> lock(tables_);
  TablesChange death(header_);
  RecordChange<fp_plugin_connection> change(record);
  record->state = 0;
}

fp_plugin_collective* Telemetry::take_collective(uint64_t communicator, uint32_t rank, uint32_t ranks,
                                                 const char* function, const char* algorithm,
                                                 const char* protocol) {
  std::lock_guard<std::mutex> lock(tables_);
  for (uint32_t i = 0; i < kCollectives; ++i) {
    fp_plugin_collective* record = &collectives_[i];
    if (record->state == 0) {
      RecordChange<fp_plugin_collective> change(record);
      record->communicator = communicator;
      record->rank = rank;
      record->ranks = ranks;
      copy_text(record->function, function);
      copy_text(record->algorithm, algorithm);
      copy_text(record->protocol, protocol);
      record->state = 1;
      return record;
    }
    if (record->communicator == communicator && record->rank == rank &&
        strcmp(record->function, function) == 0 && strcmp(record->algorithm, algorithm) == 0 &&
        strcmp(record->protocol, protocol) == 0)
      return record;
  }
  ++header_->dropped_records;
  return nullptr;
}

void Telemetry::event(const EventFields& fields, const EventTime& time) {
  std::lock_guard<std::mutex> lock(event_lock_);
  uint64_t index = header_->events_next;
  fp_plugin_event* slot = &events_[index % kEvents];
  __atomic_store_n(&slot->commit, 2 * index + 1, __ATOMIC_RELAXED);
  fence_release();
  slot->host_ns = time.host_ns;
  slot->mono_ns = time.mono_ns;
  slot->fleet_ns = time.fleet_ns;
  slot->fleet_bound_ns = time.fleet_bound_ns;
  slot->kind = fields.kind;
  slot->reason = fields.reason;
  slot->connection = fields.connection;
  slot->lane = fields.lane;
  slot->device = fields.device;
  slot->epoch = fields.epoch;
  slot->connection_id = fields.connection_id;
  slot->value = fields.value;
  copy_text(slot->peer, fields.peer);
  copy_text(slot->peer_device, fields.peer_device);
  __atomic_store_n(&slot->commit, 2 * index + 2, __ATOMIC_RELEASE);
  __atomic_store_n(&header_->events_next, index + 1, __ATOMIC_RELEASE);
}

void Telemetry::operation(const fp_plugin_collective& record, uint64_t number, uint64_t bytes,
                          uint64_t took_ns, const EventTime& end) {
  std::lock_guard<QuickLock> lock(operation_lock_);
  uint64_t index = operations_next_++;
  fp_plugin_operation* slot = &operations_[index % kOperations];
  __atomic_store_n(&slot->commit, 2 * index + 1, __ATOMIC_RELAXED);
  fence_release();
  slot->communicator = record.communicator;
  slot->number = number;
  slot->end_host_ns = end.host_ns;
  slot->end_fleet_ns = end.fleet_ns;
  slot->fleet_bound_ns = end.fleet_bound_ns;
  slot->took_ns = took_ns;
  slot->bytes = bytes;
  slot->rank = record.rank;
  slot->ranks = record.ranks;
  memcpy(slot->function, record.function, sizeof(slot->function));
  memcpy(slot->algorithm, record.algorithm, sizeof(slot->algorithm));
  memcpy(slot->protocol, record.protocol, sizeof(slot->protocol));
  __atomic_store_n(&slot->commit, 2 * index + 2, __ATOMIC_RELEASE);
}

bool Telemetry::read_event(uint64_t index, fp_plugin_event* out) const {
  const fp_plugin_event* slot = &events_[index % kEvents];
  if (__atomic_load_n(&slot->commit, __ATOMIC_ACQUIRE) != 2 * index + 2) return false;
  memcpy(out, slot, sizeof(*out));
  fence_acquire();
  return __atomic_load_n(&slot->commit, __ATOMIC_RELAXED) == 2 * index + 2;
}

}  // namespace fabricpulse
