// Probe samples, from the probe engine to its readers (clocksync sidecar, exporter).
//
// A file of three parts: header, edge tables, ring. One writer (the engine), any number of readers, no lock
// and no back pressure: a reader that falls behind by more than `capacity` samples loses the oldest and can
// tell how many.
//
// An edge is (local NIC, remote NIC). Both ends send trains of three packets to each other on their own
// account; every packet carries the kernel TX stamps of the sender's previous train and the RX stamps of the
// last train that the sender received from us. So each end holds all four stamps of both directions:
//   inbound:  peer -> us, tx by the peer's stamp clock, rx by ours
//   outbound: us -> peer, tx by our stamp clock, rx by the peer's
//
// The stamp clock of a host is CLOCK_MONOTONIC_RAW plus a constant that stays the same until the next boot, about
// ns since 1970. It is never stepped or slewed. The kernel stamps packets with CLOCK_REALTIME; the engine converts.
//
// There are two edge tables of `edge_capacity` each, one after the other. Table `edges_sequence & 1` is in force; the
// writer changes the other and puts it in force by one store. A writer that is stopped or killed at any moment leaves a
// whole table in force. A reader's copy is good when `edges_sequence` is the same after it as before.
//
// Protocol of a slot: the writer stores 2*index+1 to `commit`, fills the sample, stores 2*index+2 with
// release order. A reader of sample `index` reads slot index % capacity and accepts it when `commit` was
// 2*index+2 before and after.
#ifndef FABRICPULSE_PROBE_RING_H_
#define FABRICPULSE_PROBE_RING_H_

#include <stdint.h>

#define FP_PROBE_RING_MAGIC UINT64_C(0x31474e5242505046)  // "FPPBRNG1", little endian
#define FP_PROBE_RING_VERSION 5u
#define FP_PROBE_TRAIN 3  // packets of a train: warm-up, first and second of the coded pair

enum fp_probe_direction { FP_PROBE_INBOUND = 0, FP_PROBE_OUTBOUND = 1 };

enum fp_probe_flags {
  // tx stamps were taken by the NIC. They are on the stamp clock if tx_error_ns is not 0; of no use otherwise.
  FP_PROBE_TX_HARDWARE = 1 << 0,
  FP_PROBE_RX_HARDWARE = 1 << 1,
  FP_PROBE_MAIN_PATH = 1 << 2,    // source port of the main path; others belong to the path sweep
  FP_PROBE_FLEET_VALID = 1 << 3,  // owd_ns and owd_bound_ns hold
};

struct fp_probe_sample {
  uint64_t commit;
  uint32_t edge;         // index into the edge table
  uint32_t train;        // train number of the sender, counts from 1, wraps
  uint32_t epoch;        // start identity of the sender: changes when the sender restarts
  uint16_t path;         // index of the source port, 0 = main path
  uint8_t direction;     // enum fp_probe_direction
  uint8_t flags;         // enum fp_probe_flags
  uint8_t tx_valid;      // bit i: tx_ns[i] holds
  uint8_t rx_valid;      // bit i: rx_ns[i] holds
  uint16_t tx_error_ns;  // how far stamps of a NIC may be off on the stamp clock; 0 = the kernel's
  uint16_t rx_error_ns;
  uint8_t reserved[2];
  int64_t tx_ns[FP_PROBE_TRAIN];  // sender's stamp clock
  int64_t rx_ns[FP_PROBE_TRAIN];  // receiver's stamp clock
  int64_t owd_ns;                 // inbound only: one-way delay of the best packet of the train on fleet time
  int64_t owd_bound_ns;           // sum of both clocks' error bounds then
  uint64_t pad[4];
};

enum fp_probe_edge_state { FP_EDGE_FREE = 0, FP_EDGE_ACTIVE = 1, FP_EDGE_RETIRED = 2 };

struct fp_probe_edge {
  uint32_t state;       // enum fp_probe_edge_state
  uint32_t generation;  // counts up each time the slot is taken by another edge
  char device[32];      // local NIC
  char network[32];     // rail of the local NIC
  char peer[96];        // remote host name
  char peer_device[32];
  char peer_network[32];
};

struct fp_probe_ring_header {
  uint64_t magic;
  uint32_t version;
  uint32_t size;           // bytes of this header
  uint32_t edge_size;      // sizeof(struct fp_probe_edge)
  uint32_t edge_capacity;  // edges
  uint32_t sample_size;    // sizeof(struct fp_probe_sample)
  uint32_t capacity;       // samples, a power of two
  uint64_t edges_offset;   // of the first table
  uint64_t samples_offset;
  char host[96];  // this host's name in the fleet
  uint32_t writer_pid;
  uint32_t epoch;           // start identity of the engine
  uint64_t edges_sequence;  // changes of the edge table; which of the two is in force
  uint64_t next;            // index of the next sample to be written
  // Times that delays have contradicted this host's clock page (causality). Its futex is woken when it or
  // hidden_jump_ns changes: a page that is wrong must not stay.
  uint64_t contradictions;
  int64_t stamp_epoch_ns;  // stamp clock minus CLOCK_MONOTONIC_RAW
  // By how much this host's clock may have jumped during the last seconds without showing in delays, as all packets of
  // most peers wait in queues; 0 = by no more than its bound. Its bound has to be wider by as much.
  int64_t hidden_jump_ns;
  // Times that this host's clock seemed to move away from the others' by more than it should (clock shift): for some
  // tenths of a second its page is not to be taken as synchronized. Wakes the same futex.
  uint64_t doubts;
};

#ifdef __cplusplus
static_assert(sizeof(fp_probe_sample) == 128, "Python mirror: core/fabricpulse/core/shm/probe_ring.py");
static_assert(sizeof(fp_probe_edge) == 232, "Python mirror: core/fabricpulse/core/shm/probe_ring.py");
static_assert(sizeof(fp_probe_ring_header) == 200, "Python mirror: core/fabricpulse/core/shm/probe_ring.py");
#endif

#endif  // FABRICPULSE_PROBE_RING_H_
