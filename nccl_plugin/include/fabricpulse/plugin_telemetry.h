// What the NCCL plugin shows of itself: <run>/plugin/<name>.telemetry. The name is the process id and the
// inode of its PID namespace in hexadecimal, "4711-effffffc": containers that share the directory share no
// pids.
//
// One writer process (the job), any number of readers that only map and read. Nothing here is a command:
// those go to <run>/plugin/<name>.sock (docs/control-protocol.md).
//
// The file is a header, then tables of fixed-size records. The header has where each table starts, how large
// a record is and how many there are; a reader uses those numbers, not its own sizeof, so that a record may
// grow at its end within a version.
//
//   devices      one a physical NIC of the host that the plugin uses
//   connections  one a send or receive communicator of NCCL (they are one-way)
//   lanes        one a path of a connection: a TCP socket or a queue pair between a local and a remote NIC
//   pairs        what closed lanes have left behind, by (local NIC, peer host, peer NIC, transport)
//   collectives  what the profiler has seen, by (communicator, collective, algorithm, protocol)
//   events       ring of state changes
//   job          one record: the job's settings from its environment
//   operations   ring of collectives that have ended
//
// Consistency. Every record starts with a seqlock `sequence`: odd while the writer works; a reader copies the
// record and takes it if the sequence was even and the same before and after. `state` 0 is a free slot. When
// a slot is taken by another object its `generation` counts up.
//
// Counters never go back. Those of a lane live as long as the lane; when it closes, its totals move into the
// record of its pair. So a monotonic total by (device, peer, peer_device) is: pair record + sum of its lanes.
// The move happens inside one change of header.tables_sequence (a seqlock too: odd while a lane or a
// connection is born or dies): read it before and after a pass over lanes and pairs, and take the pass again
// if it changed.
//
// Liveness. The writer removes the file at exit. After a kill -9 it stays: the job has ended when no process
// has `pid`, or when that process's start time (field 22 of /proc/<pid>/stat) is not `pid_start_ticks`. Who
// finds such a file may remove it, and so does the plugin when the next job starts, but not while
// `heartbeat_mono_ns` is fresh (less than 5 s old; refreshed at least once a second): the process may live in
// another PID namespace.
//
// Units: bytes, nanoseconds. *_mono_ns is CLOCK_MONOTONIC of the machine, *_host_ns is the host's clock
// (CLOCK_REALTIME through the virtual clock page where there is one). Python mirror:
// nccl_plugin/fabricpulse/plugin_ipc/telemetry.py.
#ifndef FABRICPULSE_PLUGIN_TELEMETRY_H_
#define FABRICPULSE_PLUGIN_TELEMETRY_H_

#include <stdint.h>

#define FP_PLUGIN_TELEMETRY_MAGIC UINT64_C(0x314c45544c505046)  // "FPPLTEL1", little endian
#define FP_PLUGIN_TELEMETRY_VERSION 1u

// Upper bounds of the delay histograms, ns, ascending; the last bucket is everything above the last bound.
#define FP_PLUGIN_DELAY_BOUNDS 23
#define FP_PLUGIN_DELAY_BUCKETS (FP_PLUGIN_DELAY_BOUNDS + 1)

enum fp_plugin_table {
  FP_TABLE_DEVICES = 0,
  FP_TABLE_CONNECTIONS = 1,
  FP_TABLE_LANES = 2,
  FP_TABLE_PAIRS = 3,
  FP_TABLE_COLLECTIVES = 4,
  FP_TABLE_EVENTS = 5,
  FP_TABLE_JOB = 6,
  FP_TABLE_OPERATIONS = 7,
  FP_TABLE_COUNT = 8,
  FP_TABLE_SLOTS = 8,  // room in the header
};

enum fp_lane_transport { FP_LANE_TCP = 1, FP_LANE_VERBS = 2 };

enum fp_lane_state {
  FP_LANE_FREE = 0,        // no lane in this slot
  FP_LANE_CONNECTING = 1,  // not up yet; in the table once FP_REASON_UNREACHABLE holds
  FP_LANE_UP = 2,          // carries traffic, or could at once
  FP_LANE_SLOW_START = 3,  // back after a fault, share still growing
  FP_LANE_FENCING = 4,     // failed; waiting for the peer's state frame
  FP_LANE_DOWN = 5,        // failed; being probed with back-off
  FP_LANE_DAMPED = 6,      // path works again but has flapped: kept out until quiet
  FP_LANE_DISABLED = 7,    // taken out by command (lane.disable, nic.avoid), here or at the peer
  // Of TCP lanes beside queue pairs (FABRICPULSE_LAST_RESORT):
  FP_LANE_LAST_RESORT = 8,  // carries traffic, as no queue pair of the connection does
  FP_LANE_SPARE = 9,        // not needed now
};

enum fp_lane_reason {  // why a lane left service last
  FP_REASON_NONE = 0,
  FP_REASON_STALL = 1,         // nothing acknowledged for longer than the stall timer
  FP_REASON_LINK_DOWN = 2,     // the local NIC lost its link (rtnetlink)
  FP_REASON_SOCKET_ERROR = 3,  // the transport reported an error or the peer hung up
  FP_REASON_PEER = 4,          // the peer asked for it
  FP_REASON_COMMAND = 5,       // control socket
  FP_REASON_PROTOCOL = 6,      // bytes that are no frame
  FP_REASON_REPATH = 7,        // replaced by the same pair on another path
  FP_REASON_CORRUPT = 8,       // a checksum was wrong
  FP_REASON_DEADLINE = 9,      // a chunk was not delivered in time while other lanes were well
  FP_REASON_UNREACHABLE = 10,  // dialled for 5 s and never up, while other lanes of the connection are
  FP_REASON_RELIEVED = 11,     // a lane of last resort: a queue pair is back
};

enum fp_delay_source {
  FP_DELAY_NONE = 0,
  FP_DELAY_FLEET = 1,     // true one-way delay: both ends stamped on fleet time
  FP_DELAY_HALF_RTT = 2,  // no fleet time: half of the measured round trip
};

enum fp_wait {  // what the oldest request of a connection waits for
  FP_WAIT_NOTHING = 0,
  FP_WAIT_PEER_RECEIVE = 1,  // sender: the peer has not posted the receive
  FP_WAIT_DELIVERY = 2,      // sender: data under way, not yet acknowledged
  FP_WAIT_PEER_SEND = 3,     // receiver: nothing has arrived for the oldest receive
  FP_WAIT_ARRIVAL = 4,       // receiver: part of the oldest receive has arrived
  FP_WAIT_LANE = 5,          // no lane is up
};

struct fp_delay_histogram {
  uint64_t count;
  uint64_t sum_ns;  // negative delays (clocks apart within their bound) count as 0
  uint64_t buckets[FP_PLUGIN_DELAY_BUCKETS];
};

struct fp_plugin_table_info {
  uint64_t offset;       // from the start of the file
  uint32_t record_size;  // bytes
  uint32_t capacity;     // records
};

struct fp_plugin_header {
  uint64_t magic;
  uint32_t version;
  uint32_t size;       // bytes of this header
  uint64_t file_size;  // bytes of the file
  uint32_t pid;
  uint32_t rank;               // from the launcher's environment; UINT32_MAX = unknown
  uint64_t pid_start_ticks;    // field 22 of /proc/<pid>/stat
  int64_t start_host_ns;       // when the plugin was first initialised
  uint64_t heartbeat_mono_ns;  // refreshed at least once a second
  uint64_t generation;         // of the last change accepted on the control socket; 0 = none yet
  uint64_t tables_sequence;    // seqlock of births and deaths, see above
  uint64_t events_next;        // index of the next event to be written
  uint64_t dropped_records;    // lanes and connections that found their table full and are not shown
  uint32_t clock_status;       // enum fp_clock_status of the clock page when last read
  uint32_t communicators;      // NCCL communicators that use the plugin now
  uint32_t telemetry_enabled;  // 0: counters stand still (FABRICPULSE_TELEMETRY=0)
  uint32_t reserved0;
  char host[96];       // name of this host in the fleet
  char workload[128];  // FABRICPULSE_WORKLOAD, SLURM_JOB_ID or "unknown"
  char plugin_version[32];
  char abi[16];  // newest symbol NCCL has called: "v12"
  uint64_t delay_bounds_ns[FP_PLUGIN_DELAY_BOUNDS];
  struct fp_plugin_table_info tables[FP_TABLE_SLOTS];
};

struct fp_plugin_device {
  uint32_t sequence;
  uint32_t state;       // 0 free, 1 link up, 2 link down
  char name[32];        // "rail0"
  uint32_t speed_mbps;  // 0 = unknown
  uint32_t avoided;     // 1: nic.avoid holds (desired state)
  uint32_t lanes;       // lanes over it now
  uint32_t lanes_up;    // of those in state UP or SLOW_START
  uint64_t link_downs;  // link losses seen since start
  uint64_t reserved[4];
};

struct fp_plugin_connection {
  uint32_t sequence;
  uint32_t state;  // 0 free, 1 open, 2 peer lost, 3 closing
  uint32_t generation;
  uint32_t direction;     // 1 send, 2 receive
  uint64_t id;            // unique on both ends: sender and receiver show the same number
  uint64_t communicator;  // commId given by NCCL (v11+), else 0
  uint32_t device;        // index into devices: the NIC NCCL chose
  uint32_t peer_pid;
  uint32_t peer_rank;               // UINT32_MAX = unknown
  uint32_t requests;                // posted and not yet done
  char peer[96];                    // peer host
  uint64_t bytes;                   // of completed requests
  uint64_t completed;               // requests
  uint64_t last_progress_mono_ns;   // a chunk was acknowledged or arrived
  uint64_t oldest_request_mono_ns;  // when the oldest request that is not done was posted; 0 = none
  uint64_t stall_ns_max;            // longest gap between two chunks while a request was under way
  uint64_t failovers;               // times chunks moved away from a failed lane
  uint64_t resent_chunks;
  uint64_t duplicate_chunks;  // arrived twice and dropped (receiver)
  uint32_t waits_for;         // enum fp_wait
  uint32_t net_operations;    // setNetAttr (v11+): bit mask of ncclFunc; UINT32_MAX = unknown
  uint32_t net_algorithms;    // bit mask
  uint32_t net_protocols;     // bit mask
  // What it carries, as NCCL's profiler last reported (detail 2, v10+); UINT32_MAX = unknown.
  uint32_t flow_collective;  // index into collectives: function, algorithm, protocol
  uint32_t flow_rank;        // of this end, in that record's communicator: with flow_peer the GPU pair
  uint32_t flow_peer;        // of the other end
  uint32_t flow_channel;     // NCCL's channel
  // Of the oldest request: bytes that the peer does not hold (send), or that have not arrived of a message of which a part
  // has (receive); 0 = unknown, as of a receive whose message has not begun.
  uint64_t missing_bytes;
  uint64_t reserved[1];
};

struct fp_plugin_lane {
  uint32_t sequence;
  uint32_t state;  // enum fp_lane_state
  uint32_t generation;
  uint32_t transport;     // enum fp_lane_transport
  uint32_t connection;    // index into connections
  uint32_t index;         // number of the lane within its connection; 0 is the primary lane
  uint32_t device;        // index into devices: local NIC
  uint32_t direction;     // of the connection: 1 send, 2 receive
  uint64_t queue_pair;    // verbs: own QP number << 24 | peer's; TCP: local port << 16 | remote port
  uint32_t epoch;         // counts the lane's incarnations: rises each time it is built anew
  uint32_t entropy;       // what selects the path: source port or flow label
  char peer[96];          // peer host
  char peer_device[32];   // peer NIC
  uint32_t weight;        // share of the chunks, parts per 1000 among the connection's lanes
  uint32_t last_reason;   // enum fp_lane_reason
  uint32_t delay_source;  // enum fp_delay_source of `delay`
  uint32_t reserved0;
  uint64_t sent_bytes;  // payload handed to the transport, resent ones included
  uint64_t received_bytes;
  uint64_t sent_chunks;
  uint64_t received_chunks;
  uint64_t acknowledged_bytes;  // sender: the peer holds them
  uint64_t in_flight_bytes;     // sender: sent and not acknowledged
  uint64_t resent_chunks;       // sender: moved to this lane from a failed one
  uint64_t failovers;           // times this lane failed
  uint64_t stalls;              // of those by the stall timer or the deadline of a chunk
  uint64_t repaths;             // new source ports or flow labels
  uint64_t retransmits;         // transport: segments sent again (TCP_INFO), over all incarnations
  uint64_t ecn_marked;  // transport: delivered with CE mark (TCP_INFO delivered_ce), over all incarnations
  uint64_t
      delivery_rate;  // bytes per second, smoothed; 0 until a chunk of 32 KiB or more has measured it on this path
  uint64_t rtt_ns;  // smoothed round trip of the transport
  uint64_t last_progress_mono_ns;
  uint64_t state_since_mono_ns;
  uint64_t stall_ns_max;            // longest time without acknowledgement while bytes were under way
  struct fp_delay_histogram delay;  // one per chunk, of a queue pair one every 5 ms; source in delay_source
  uint64_t corrupt_frames;          // arrived with a wrong checksum, and were sent again
  uint64_t reserved[3];
};

struct fp_plugin_pair {  // totals of closed lanes
  uint32_t sequence;
  uint32_t state;  // 0 free, 1 in use
  uint32_t device;
  uint32_t transport;
  char peer[96];
  char peer_device[32];
  uint64_t sent_bytes;
  uint64_t received_bytes;
  uint64_t sent_chunks;
  uint64_t received_chunks;
  uint64_t resent_chunks;
  uint64_t failovers;
  uint64_t stalls;
  uint64_t repaths;
  uint64_t retransmits;
  uint64_t ecn_marked;
  struct fp_delay_histogram delay;
  uint32_t delay_source;  // of the last lane that closed
  uint32_t reserved0;
  uint64_t corrupt_frames;
};

struct fp_plugin_collective {
  uint32_t sequence;
  uint32_t state;  // 0 free, 1 in use
  uint64_t communicator;
  uint32_t rank;
  uint32_t ranks;
  char function[24];  // "AllReduce", or "Send" and "Recv"
  char algorithm[16];
  char protocol[16];
  uint64_t operations;      // ended
  uint64_t bytes;           // payload of one rank, summed over operations
  uint64_t busy_ns;         // sum of durations
  uint64_t last_bandwidth;  // bytes per second of the last operation (payload / duration)
  uint64_t last_end_mono_ns;
  uint64_t in_progress;    // started, not ended
  uint64_t proxy_wait_ns;  // time proxy steps waited for the network
  uint64_t reserved[4];
};

enum fp_event_kind {
  FP_EVENT_LANE_UP = 1,      // value: ns since the lane had left service (0: first time)
  FP_EVENT_LANE_DOWN = 2,    // reason: enum fp_lane_reason; value: of a stall or a missed deadline, ns waited
  FP_EVENT_LANE_FENCED = 3,  // value: ns from fault detection to the peer's state frame
  FP_EVENT_CHUNKS_MOVED = 4,  // value: chunks sent again on other lanes
  FP_EVENT_LINK_DOWN = 5,     // lane: UINT32_MAX
  FP_EVENT_LINK_UP = 6,
  FP_EVENT_PEER_LOST = 7,          // connection is dead: NCCL gets an error
  FP_EVENT_COMMAND = 8,            // value: generation
  FP_EVENT_REPATH = 9,             // value: new entropy
  FP_EVENT_NO_LANE = 10,           // a connection has no lane left
  FP_EVENT_LANE_DAMPED = 11,       // value: ns it stays out
  FP_EVENT_LANE_UNREACHABLE = 12,  // value: ns since it was first dialled
};

// Slot protocol as in probe_ring.h: `commit` is 2*index+1 while written, 2*index+2 when it holds event
// `index`.
struct fp_plugin_event {
  uint64_t commit;
  int64_t host_ns;
  uint64_t mono_ns;
  uint32_t kind;        // enum fp_event_kind
  uint32_t reason;      // enum fp_lane_reason
  uint32_t connection;  // index; UINT32_MAX = none
  uint32_t lane;        // number within the connection; UINT32_MAX = none
  uint32_t device;      // index; UINT32_MAX = none
  uint32_t epoch;
  uint64_t connection_id;
  uint64_t value;
  char peer[96];
  char peer_device[32];
  int64_t fleet_ns;         // fleet time of the event; 0: there was none
  uint64_t fleet_bound_ns;  // of its error
};

// A collective, send or receive that has ended, as the profiler saw it. Slot protocol of fp_plugin_event;
// `commit` alone shows which slots are in use, and in which order they were written.
struct fp_plugin_operation {
  uint64_t commit;
  uint64_t communicator;
  uint64_t number;          // NCCL's, of this function in this communicator; of sends and receives 0
  int64_t end_host_ns;      // host clock
  int64_t end_fleet_ns;     // fleet time; 0: there was none
  uint64_t fleet_bound_ns;  // of its error
  uint64_t took_ns;         // from the start of the first of its parts to the end of the last
  uint64_t bytes;           // payload of one rank
  uint32_t rank;
  uint32_t ranks;
  char function[24];
  char algorithm[16];
  char protocol[16];
};

// From the job's environment: as set by the job's user, not verified. Empty or 0: unknown.
struct fp_plugin_job {
  uint32_t sequence;
  uint32_t state;  // 0 free, 1 in use
  uint32_t nodes;  // SLURM_JOB_NUM_NODES
  uint32_t reserved0;
  char slurm_job[32];      // SLURM_JOB_ID
  char account[64];        // SLURM_JOB_ACCOUNT
  char pod_name[256];      // POD_NAME, by the downward API
  char pod_namespace[64];  // POD_NAMESPACE
  char pod_uid[64];        // POD_UID
  uint64_t reserved[4];
};

#ifdef __cplusplus
#include <cstddef>
static_assert(sizeof(fp_delay_histogram) == 208,
              "Python mirror: nccl_plugin/fabricpulse/plugin_ipc/telemetry.py");
static_assert(sizeof(fp_plugin_header) == 688,
              "Python mirror: nccl_plugin/fabricpulse/plugin_ipc/telemetry.py");
static_assert(sizeof(fp_plugin_device) == 96,
              "Python mirror: nccl_plugin/fabricpulse/plugin_ipc/telemetry.py");
static_assert(sizeof(fp_plugin_connection) == 256,
              "Python mirror: nccl_plugin/fabricpulse/plugin_ipc/telemetry.py");
static_assert(sizeof(fp_plugin_lane) == 568,
              "Python mirror: nccl_plugin/fabricpulse/plugin_ipc/telemetry.py");
static_assert(sizeof(fp_plugin_pair) == 448,
              "Python mirror: nccl_plugin/fabricpulse/plugin_ipc/telemetry.py");
static_assert(sizeof(fp_plugin_collective) == 168,
              "Python mirror: nccl_plugin/fabricpulse/plugin_ipc/telemetry.py");
static_assert(sizeof(fp_plugin_event) == 208,
              "Python mirror: nccl_plugin/fabricpulse/plugin_ipc/telemetry.py");
static_assert(sizeof(fp_plugin_operation) == 128,
              "Python mirror: nccl_plugin/fabricpulse/plugin_ipc/telemetry.py");
static_assert(sizeof(fp_plugin_job) == 528, "Python mirror: nccl_plugin/fabricpulse/plugin_ipc/telemetry.py");
#endif

#endif  // FABRICPULSE_PLUGIN_TELEMETRY_H_
