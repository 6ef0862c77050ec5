// What the verbs interposer shows of a process: <run>/plugin/<name>.verbs, or <name>-nccl.verbs from the copy of
// the library that NCCL opens. The name is that of the plugin's telemetry: process id and inode of the PID
// namespace.
//
// One writer process, any number of readers that copy. A header, then tables of fixed-size records that the header
// places: the same rules as in fabricpulse/plugin_telemetry.h for `sequence` of a record (a seqlock), `generation`,
// and tables_sequence.
//
//   devices      one an RDMA device that the process has opened
//   queue_pairs  one a queue pair that it has now
//   totals       what queue pairs that were destroyed have counted, by (device, port, netdev, peer GID or LID)
//   samples      ring of messages that were sampled, at the sender when posted, at the receiver when polled
//
// Messages. A message is what the receiver gets a completion for: it ends with SEND, SEND_WITH_IMM, SEND_WITH_INV
// or RDMA_WRITE_WITH_IMM, and has the bytes of the RDMA WRITEs posted before that since the last message. A
// reliable connection delivers each of them once and in order, so the n-th message posted on a queue pair is the
// n-th receive completion of the one it is connected with: the index needs no room in the packets.
//
// Liveness. The writer holds an exclusive flock on the file as long as it lives. The file stays when it ends, with the
// last counts; the qp exporter removes it later, or the next process of the same user.
//
// Units: bytes, ns. *_raw_ns is CLOCK_MONOTONIC_RAW of the host (through the virtual clock page where there is
// one), which the clock page turns into fleet time. Python mirror: nccl_plugin/fabricpulse/plugin_ipc/verbs.py.
#ifndef FABRICPULSE_VERBS_TELEMETRY_H_
#define FABRICPULSE_VERBS_TELEMETRY_H_

#include <stdint.h>

#define FP_VERBS_TELEMETRY_MAGIC UINT64_C(0x314c455442565046)  // "FPVBTEL1", little endian
#define FP_VERBS_TELEMETRY_VERSION 2u

// Upper bounds of the histograms of post to completion, ns, ascending; the last bucket is all above the last.
#define FP_VERBS_DELAY_BOUNDS 20
#define FP_VERBS_DELAY_BUCKETS (FP_VERBS_DELAY_BOUNDS + 1)
#define FP_VERBS_OPCODES 16   // enum ibv_wr_opcode; what is beyond counts as the last
#define FP_VERBS_STATUSES 24  // enum ibv_wc_status; what is beyond counts as the last

enum fp_verbs_table {
  FP_VERBS_DEVICES = 0,
  FP_VERBS_QUEUE_PAIRS = 1,
  FP_VERBS_TOTALS = 2,
  FP_VERBS_SAMPLES = 3,
  FP_VERBS_TABLES = 4,
};

// Ways around the library that were seen: work posted by them is not counted.
enum fp_verbs_bypass {
  FP_VERBS_BYPASS_DIRECT = 1,  // mlx5dv_init_obj of a queue: the program writes into the queue itself
  FP_VERBS_BYPASS_DEVX = 2,    // mlx5dv_devx_obj_create: queues that libibverbs does not know
};

struct fp_verbs_histogram {
  uint64_t count;
  uint64_t sum_ns;
  uint64_t buckets[FP_VERBS_DELAY_BUCKETS];
};

struct fp_verbs_table_info {
  uint64_t offset;
  uint32_t record_size;
  uint32_t capacity;
};

struct fp_verbs_header {
  uint64_t magic;
  uint32_t version;
  uint32_t size;
  uint64_t file_size;
  uint32_t pid;
  uint32_t rank;  // from the launcher's environment; UINT32_MAX = unknown
  uint64_t pid_start_ticks;
  int64_t start_raw_ns;
  uint64_t tables_sequence;
  uint64_t samples_next;        // index of the next sample to be written
  uint64_t sample_every;        // messages whose index is a multiple of it are sampled
  uint64_t dropped_records;     // contexts and queue pairs that found their table full: not counted
  uint64_t unseen_posts;        // calls for queue pairs that were not seen created
  uint64_t unseen_completions;  // completions of such, or of a CQ that does not name the queue pair
  uint64_t bypass;              // enum fp_verbs_bypass, bits
  char host[96];
  char workload[128];
  char library_version[32];
  uint64_t delay_bounds_ns[FP_VERBS_DELAY_BOUNDS];
  struct fp_verbs_table_info tables[FP_VERBS_TABLES];
};

struct fp_verbs_device {
  uint32_t sequence;
  uint32_t state;  // 0 free, 1 in use
  char name[32];   // "mlx5_0"
  uint32_t contexts;
  uint32_t reserved0;
};

// Counters never go back.
struct fp_verbs_counters {
  uint64_t posts[FP_VERBS_OPCODES];  // work requests accepted by the provider
  uint64_t bytes[FP_VERBS_OPCODES];  // payload of those
  uint64_t refused_posts;            // calls that returned an error
  uint64_t receives_posted;
  uint64_t completions;     // polled, of sends
  uint64_t receives;        // polled, of receives, without error
  uint64_t received_bytes;  // of those
  uint64_t messages_sent;
  uint64_t messages_received;
  uint64_t errors[FP_VERBS_STATUSES];  // completions by status; [0] stays 0
  uint64_t untracked_posts;            // found the list of outstanding work full: no post-to-completion time
  struct fp_verbs_histogram delay;     // post to completion polled, of signaled work without error
};

struct fp_verbs_queue_pair {
  uint32_t sequence;
  uint32_t state;  // 0 free, 1 in use
  uint32_t generation;
  uint32_t device;  // index into devices
  uint32_t number;
  uint32_t peer_number;
  uint32_t type;      // enum ibv_qp_type
  uint32_t qp_state;  // enum ibv_qp_state, as last set by the program
  uint32_t port;
  uint32_t peer_lid;
  uint32_t send_psn;
  uint32_t recv_psn;
  uint8_t local_gid[16];
  uint8_t peer_gid[16];
  char netdev[16];        // of the local GID; empty: unknown or none
  uint32_t incarnation;   // counts the times that it was taken to RESET
  uint16_t source_port;   // of its RoCE v2 packets, as drivers choose it; 0: unknown, or no GIDs
  uint8_t traffic_class;  // of their IP header
  uint8_t reserved0;
  uint64_t message_index;  // of the next message posted, since RESET
  uint64_t receive_index;  // of the next receive completion, since RESET
  uint64_t outstanding;    // sends without a completion; those before a signaled one end with it
  uint64_t outstanding_signaled;
  uint64_t outstanding_receives;  // 0 with a shared receive queue
  uint64_t oldest_post_raw_ns;    // of the oldest signaled send without a completion; 0 = none
  uint64_t last_post_raw_ns;
  uint64_t last_progress_raw_ns;  // a completion without error was polled
  uint64_t stall_ns_max;          // longest time that signaled work was outstanding without a completion
  struct fp_verbs_counters counters;
};

struct fp_verbs_total {
  uint32_t sequence;
  uint32_t state;  // 0 free, 1 in use
  uint32_t device;
  uint32_t peer_lid;
  uint8_t peer_gid[16];
  char netdev[16];
  uint32_t port;
  uint32_t reserved0;
  struct fp_verbs_counters counters;
};

enum fp_verbs_direction { FP_VERBS_SENT = 1, FP_VERBS_RECEIVED = 2 };

// `commit` is 2*index+1 while written, 2*index+2 when it holds sample `index`.
struct fp_verbs_sample {
  uint64_t commit;
  int64_t raw_ns;  // before its last work request was posted; after its receive completion was polled
  uint64_t message;
  uint64_t bytes;  // sender: of the message; receiver: of the completion
  uint32_t direction;
  uint32_t number;
  uint32_t peer_number;
  uint32_t psn;  // first of this direction: the sender's send_psn is the receiver's recv_psn
  uint8_t local_gid[16];
  uint8_t peer_gid[16];
  char netdev[16];
  uint32_t incarnation;
  uint32_t device;
};

#ifdef __cplusplus
static_assert(sizeof(fp_verbs_histogram) == 184 && sizeof(fp_verbs_header) == 584,
              "Python mirror: plugin_ipc/verbs.py");
static_assert(sizeof(fp_verbs_device) == 48 && sizeof(fp_verbs_sample) == 104,
              "Python mirror: plugin_ipc/verbs.py");
static_assert(sizeof(fp_verbs_counters) == 696, "Python mirror: plugin_ipc/verbs.py");
static_assert(sizeof(fp_verbs_queue_pair) == 872 && sizeof(fp_verbs_total) == 752,
              "Python mirror: plugin_ipc/verbs.py");
#endif

#endif  // FABRICPULSE_VERBS_TELEMETRY_H_
