// The clock page: fleet time for every process of a host.
//
// The clocksync sidecar writes it, everybody reads it. The file holds two pages: one is in force, the writer fills
// the other and puts it in force by one store to `sequence`. A writer that is stopped or killed at any moment so
// leaves a whole page in force; readers never wait for it.
//
// Bit 1 of `sequence` says which page is in force; a reader whose copy saw another sequence at its end than at its
// begin tries again. `sequence` is odd while the writer decides whether a page with a new line comes into force: not
// before it has seen that the line has not begun, as readers would have followed the old one beyond that moment, and
// see time run backward. Until the line begins, both say the same; after that, while the sequence is odd, fleet time
// is FP_CLOCK_UNKNOWN. Only a writer that was stopped between two stores leaves readers there.
//
// Fleet time is a chain of straight lines over CLOCK_MONOTONIC_RAW, which cannot be stepped or slewed. The page
// holds the line that is valid now and the one before it.
//
//   fleet_ns = to_ns + (raw_ns - from_ns) * (1 + rate_ppt / 10^12)
//   error bound = bound_ns + |raw_ns - bound_ref_raw_ns| * drift_ppb / 10^9    (earliest <= truth <= latest)
//
// Beside the bound, which is a guarantee, stands what is likely: estimated_error_ns, as of struct timex esterror beside
// maxerror. It is measured: 99 of 100 comparisons of this host's edges with what all others say of them, in the last
// minutes, were within. What all edges of a host hide alike does not show in it. It is never above the bound, which
// where it is smaller, as on the host that all follow, stands for it. 0 = not known, as in all but FP_CLOCK_SYNCHRONIZED;
// writers that did not know of it left 0 there.
//
// Stamps in logs are of the host's CLOCK_REALTIME, which chronyd, ntpd and people steer. Two more lines say when
// on the raw clock such a stamp was: `host` for stamps from `host_since_ns` on, `host_previous` for older ones.
// What the host clock was seen to do in the last second, steps too, is in `host_bound_ns`, which a converted
// stamp has on top of its bound. What it did since the sidecar last sampled it (3 times a second, or not at all
// if the sidecar is stopped) no page can know: a reader has to compare the clocks itself before it converts.
// fp_fleet_clock_read() does: it leaves the deviation in `host_bound_ns` of the copy, and says
// FP_CLOCK_DISRUPTED after a step. Fleet time itself rests on the raw clock alone.
//
// A page whose writer is stopped or dead knows of nothing that came later. So a reader looks itself. Past
// `synchronized_until_raw_ns` no correction has come, past `watched_until_raw_ns` there is no writer that would take
// notice of what contradicts the page: FP_CLOCK_SYNCHRONIZED means FP_CLOCK_HOLDOVER then. The writer renews the latter
// some 33 times a second, each time for 40 ms (100 ms where it has no real-time priority). A machine that
// was suspended, or whose hypervisor says by its VMClock (/dev/vmclock0) that clocks were disrupted, has other counts of
// that than the page: FP_CLOCK_DISRUPTED. What neither shows, as a virtual machine that was stopped where there is no
// VMClock, makes a page that says holdover false for as long as it is valid without a writer.
//
// CLOCK_MONOTONIC_RAW differs between time namespaces. A reader in another one than the sidecar's has no
// fleet time: fp_fleet_clock_open() refuses it.
#ifndef FABRICPULSE_CLOCK_PAGE_H_
#define FABRICPULSE_CLOCK_PAGE_H_

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "fabricpulse/virtual_clock.h"

#ifdef __cplusplus
extern "C" {
#endif

#define FP_CLOCK_PAGE_MAGIC UINT64_C(0x314b434f4c435046)  // "FPCLOCK1", little endian
#define FP_CLOCK_PAGE_VERSION 6u
// A host clock this far from where the page has it was stepped.
#define FP_CLOCK_STEP_NS INT64_C(20000)
// Saturation of bounds: 36 years say as much as any more.
#define FP_CLOCK_WIDEST_NS (INT64_C(1) << 60)
// A suspend takes far longer than two clocks can be read apart.
#define FP_CLOCK_SUSPEND_NS INT64_C(10000000)
#ifndef FP_VMCLOCK_PATH
#define FP_VMCLOCK_PATH "/dev/vmclock0"
#endif
#define FP_VMCLOCK_MAGIC UINT32_C(0x4b4c4356)  // "VCLK", little endian
// Attempts at a copy: a writer that has a core decides in some us.
#define FP_CLOCK_TRIES 500

enum fp_clock_status {
  FP_CLOCK_UNKNOWN = 0,       // never synchronised: no fleet time
  FP_CLOCK_SYNCHRONIZED = 1,  // fed by fresh measurements
  FP_CLOCK_HOLDOVER = 2,      // no fresh measurement, or a bound of over 10 ms; the bound grows
  // Something contradicts it: the machine was paused; of a stamp's conversion: the host clock was stepped.
  FP_CLOCK_DISRUPTED = 3,
};

struct fp_clock_line {
  int64_t from_ns;   // on the clock that is converted
  int64_t to_ns;     // what the other clock showed then
  int64_t rate_ppt;  // rate of the other clock minus that of this one, parts per 10^12
};

struct fp_clock_page {
  uint32_t status;                     // enum fp_clock_status
  uint32_t estimated_error_ns;         // see above; 0 = not known
  struct fp_clock_line current;        // CLOCK_MONOTONIC_RAW -> fleet time, from current.from_ns on
  struct fp_clock_line previous;       // the same before
  int64_t bound_ref_raw_ns;            // when bound_ns was true
  int64_t bound_ns;                    // half width of [earliest, latest]
  int64_t drift_ppb;                   // growth of the bound per second of age
  int64_t valid_until_raw_ns;          // past this the page is dead (writer gone): treat as FP_CLOCK_UNKNOWN
  struct fp_clock_line host;           // CLOCK_REALTIME -> CLOCK_MONOTONIC_RAW, from host_since_ns on
  struct fp_clock_line host_previous;  // the same before
  int64_t host_since_ns;
  int64_t host_bound_ns;    // how far `host` may be wrong, by what the host clock did lately
  uint64_t disruptions;     // times that something contradicted fleet time, since the writer started
  uint64_t time_namespace;  // of the writer (fp_time_namespace), 0 = not known
  int64_t synchronized_until_raw_ns;  // see above
  int64_t suspended_ns;               // fp_suspended_ns() when fleet time was set; negative = not known
  uint64_t vmclock_marker;            // the VMClock's disruption marker then, plus one; 0 = there is none
};

struct fp_clock_file {
  uint64_t magic;
  uint32_t version;
  uint32_t size;                 // bytes of this struct
  uint32_t sequence;             // see above
  uint32_t reserved;             // 0
  int64_t watched_until_raw_ns;  // see above; 0: for ever
  struct fp_clock_page pages[2];
};

struct fp_fleet_time {
  int64_t fleet_ns;
  int64_t bound_ns;
  uint32_t status;              // enum fp_clock_status
  uint32_t estimated_error_ns;  // of fleet time, without the conversion of a stamp; 0 = not known
};

// a * b / divisor, exact. A 128-bit division costs more than everything else in a read, and ages are seconds:
// the product nearly always fits 64 bits.
static inline int64_t fp_mul_div(int64_t a, int64_t b, int64_t divisor) {
  int64_t product;
  if (!__builtin_mul_overflow(a, b, &product)) return product / divisor;
  __extension__ typedef __int128 fp_int128;
  return (int64_t)((fp_int128)a * b / divisor);
}

static inline int64_t fp_clock_line_at(const struct fp_clock_line* line, int64_t ns) {
  int64_t dt = ns - line->from_ns;
  return line->to_ns + dt + fp_mul_div(dt, line->rate_ppt, 1000000000000LL);
}

// Fleet time when CLOCK_MONOTONIC_RAW showed `raw_ns`, by a copy of the page.
static inline struct fp_fleet_time fp_clock_at(const struct fp_clock_page* copy, int64_t raw_ns) {
  struct fp_fleet_time t;
  const struct fp_clock_line* line = raw_ns >= copy->current.from_ns ? &copy->current : &copy->previous;
  t.fleet_ns = fp_clock_line_at(line, raw_ns);
  int64_t age = raw_ns - copy->bound_ref_raw_ns;
  if (age < 0) age = -age;
  t.bound_ns = copy->bound_ns + fp_mul_div(age, copy->drift_ppb, 1000000000LL);
  t.status = copy->status;
  if (t.status == FP_CLOCK_SYNCHRONIZED && raw_ns > copy->synchronized_until_raw_ns)
    t.status = FP_CLOCK_HOLDOVER;
  if (raw_ns > copy->valid_until_raw_ns) t.status = FP_CLOCK_UNKNOWN;
  t.estimated_error_ns = t.status == FP_CLOCK_SYNCHRONIZED ? copy->estimated_error_ns : 0;
  // Older writers did not see to that.
  if (t.estimated_error_ns > copy->bound_ns) t.estimated_error_ns = (uint32_t)copy->bound_ns;
  return t;
}

// Converts a stamp of the host clock (CLOCK_REALTIME, or the lab's virtual clock), taken before
// fp_fleet_clock_read() made this copy of the page.
static inline struct fp_fleet_time fp_clock_convert(const struct fp_clock_page* copy, int64_t host_ns) {
  const struct fp_clock_line* line = host_ns >= copy->host_since_ns ? &copy->host : &copy->host_previous;
  struct fp_fleet_time t = fp_clock_at(copy, fp_clock_line_at(line, host_ns));
  t.bound_ns += copy->host_bound_ns;
  return t;
}

// CLOCK_MONOTONIC_RAW of this host (the kernel's, or in the lab the virtual one of the host).
static inline int64_t fp_raw_clock_now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC_RAW, &ts);
  return fp_virtual_raw_clock_apply(fp_virtual_clock_of_process(),
                                    (int64_t)ts.tv_sec * 1000000000LL + ts.tv_nsec);
}

// What the host clock shows now (the kernel's, or the lab's virtual clock of this host).
static inline int64_t fp_host_clock_now(const struct fp_virtual_clock* virtual_clock) {
  struct timespec ts;
  clock_gettime(CLOCK_REALTIME, &ts);
  return fp_virtual_clock_apply(virtual_clock, (int64_t)ts.tv_sec * 1000000000LL + ts.tv_nsec);
}

// The time namespace of this process; 0 where the kernel has none, or /proc is not mounted.
static inline uint64_t fp_time_namespace(void) {
  struct stat st;
  return stat("/proc/self/ns/time", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

// How long the machine has been suspended since its boot, ns; less where this thread lost its core amid the reading.
static inline int64_t fp_suspended_ns(void) {
  struct timespec with, without;
  clock_gettime(CLOCK_BOOTTIME, &with);
  clock_gettime(CLOCK_MONOTONIC, &without);
  return (int64_t)(with.tv_sec - without.tv_sec) * 1000000000LL + (with.tv_nsec - without.tv_nsec);
}

// The head of struct vmclock_abi of <linux/vmclock-abi.h>, which few systems have yet.
struct fp_vmclock {
  uint32_t magic;
  uint32_t size;
  uint16_t version;
  uint8_t counter;
  uint8_t time_type;
  uint32_t sequence;
  uint64_t disruption_marker;
};

// The hypervisor's page that says when the clocks of this machine were disrupted; NULL where it offers none.
static inline const struct fp_vmclock* fp_vmclock_open(const char* path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return NULL;
  struct stat st;
  // Of a regular file that is shorter a read would be SIGBUS.
  const int whole =
      fstat(fd, &st) == 0 && (S_ISCHR(st.st_mode) || (size_t)st.st_size >= sizeof(struct fp_vmclock));
  void* map = whole ? mmap(NULL, sizeof(struct fp_vmclock), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  close(fd);
  if (map == MAP_FAILED) return NULL;
  const struct fp_vmclock* vmclock = (const struct fp_vmclock*)map;
  if (vmclock->magic == FP_VMCLOCK_MAGIC && vmclock->version == 1 && vmclock->size >= sizeof(*vmclock)) {
    return vmclock;
  }
  munmap(map, sizeof(struct fp_vmclock));
  return NULL;
}

// The host clock and the raw clock around it, in this order: before, host, after.
struct fp_cross_timestamp {
  int64_t raw_before_ns;
  int64_t host_ns;
  int64_t raw_after_ns;
};

static inline struct fp_cross_timestamp fp_cross_timestamp_now(const struct fp_virtual_clock* virtual_clock) {
  struct fp_cross_timestamp best = {0, 0, 0};
  for (int i = 0; i < 4; ++i) {  // the first pays for cold caches, any may meet an interrupt
    struct fp_cross_timestamp one;
    one.raw_before_ns = fp_raw_clock_now();
    one.host_ns = fp_host_clock_now(virtual_clock);
    one.raw_after_ns = fp_raw_clock_now();
    if (i == 0 || one.raw_after_ns - one.raw_before_ns < best.raw_after_ns - best.raw_before_ns) best = one;
    if (best.raw_after_ns - best.raw_before_ns < 200) break;
  }
  return best;
}

static inline int64_t fp_distance(int64_t a, int64_t b) {
  int64_t distance;
  if (__builtin_sub_overflow(a, b, &distance) || distance > FP_CLOCK_WIDEST_NS ||
      distance < -FP_CLOCK_WIDEST_NS) {
    return FP_CLOCK_WIDEST_NS;
  }
  return distance < 0 ? -distance : distance;
}

// Compares what a copy of the page says of the host clock with a reading of both clocks, taken after the
// copy. Stamps of the host clock that were taken before then are converted within the bound, whatever was
// done to the host clock since the sidecar sampled it, as long as it went one way: the copy's host_bound_ns
// is wider by the deviation, and its status FP_CLOCK_DISRUPTED where that is a step.
static inline void fp_clock_page_check(struct fp_clock_page* copy, const struct fp_cross_timestamp* now) {
  const struct fp_clock_line* line = now->host_ns >= copy->host_since_ns ? &copy->host : &copy->host_previous;
  const int64_t expected_ns = fp_clock_line_at(line, now->host_ns);
  const int64_t before = fp_distance(expected_ns, now->raw_before_ns);
  const int64_t after = fp_distance(expected_ns, now->raw_after_ns);
  const int64_t farthest = before > after ? before : after;
  const int inside = expected_ns >= now->raw_before_ns && expected_ns <= now->raw_after_ns;
  const int64_t nearest = inside ? 0 : before < after ? before : after;
  if (nearest > FP_CLOCK_STEP_NS &&
      (copy->status == FP_CLOCK_SYNCHRONIZED || copy->status == FP_CLOCK_HOLDOVER)) {
    copy->status = FP_CLOCK_DISRUPTED;
  }
  copy->host_bound_ns = copy->host_bound_ns > FP_CLOCK_WIDEST_NS - farthest ? FP_CLOCK_WIDEST_NS
                                                                            : copy->host_bound_ns + farthest;
}

// Copies the page that is in force into `copy`, and reads the raw clock while it is. Returns that reading. Where the
// writer was stopped while it decided, or was changing pages at each of some hundred attempts, the copy's status is
// FP_CLOCK_UNKNOWN. Takes some 0.1 ms then, some ns else. The copy is synchronized no longer than it is watched.
static inline int64_t fp_clock_file_copy(const struct fp_clock_file* file, struct fp_clock_page* copy) {
  int64_t raw_ns = 0;
  for (int tries = 0; tries < FP_CLOCK_TRIES; ++tries) {
    const uint32_t sequence = __atomic_load_n(&file->sequence, __ATOMIC_ACQUIRE);
    const unsigned in_force = (sequence >> 1) & 1u;
    __builtin_memcpy(copy, (const void*)&file->pages[in_force], sizeof(*copy));
    const int64_t next_from_ns = file->pages[in_force ^ 1u].current.from_ns;
    // The clock is read while the copy is in force. Whoever has no core between the two would follow a line that has
    // been replaced, and then see time run backward.
    raw_ns = fp_raw_clock_now();
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&file->sequence, __ATOMIC_RELAXED) != sequence) continue;
    if ((sequence & 1u) != 0 && raw_ns >= next_from_ns) continue;
    const int64_t watched_ns = __atomic_load_n(&file->watched_until_raw_ns, __ATOMIC_RELAXED);
    if (watched_ns != 0 && watched_ns < copy->synchronized_until_raw_ns) {
      copy->synchronized_until_raw_ns = watched_ns;
    }
    return raw_ns;
  }
  copy->status = (uint32_t)FP_CLOCK_UNKNOWN;
  return raw_ns;
}

// The page at `path`, `<run>/clock` of the sidecar, opened for reading.
struct fp_fleet_clock {
  const struct fp_clock_file* file;  // NULL: closed
  uint64_t device;
  uint64_t inode;
  uint64_t time_namespace;           // of this process
  const struct fp_vmclock* vmclock;  // NULL: there is none, or this process may not read it
};

// Whether this process and the writer of the page read the same CLOCK_MONOTONIC_RAW, as far as is known.
static inline int fp_fleet_clock_same_namespace(const struct fp_fleet_clock* clock,
                                                const struct fp_clock_page* page) {
  return clock->time_namespace == 0 || page->time_namespace == 0 ||
         clock->time_namespace == page->time_namespace;
}

// Maps the page that is open as `fd`, and closes `fd` in any case. Returns 0, or -1 with errno: EPROTO for a page
// of another layout, ENOTSUP in another time namespace than the sidecar's, whose CLOCK_MONOTONIC_RAW is another
// clock.
static inline int fp_fleet_clock_map(struct fp_fleet_clock* clock, int fd) {
  clock->file = NULL;
  struct stat st;
  if (fstat(fd, &st) != 0 || (size_t)st.st_size < sizeof(struct fp_clock_file)) {
    close(fd);
    errno = EPROTO;
    return -1;
  }
  void* map = mmap(NULL, sizeof(struct fp_clock_file), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (map == MAP_FAILED) return -1;
  const struct fp_clock_file* file = (const struct fp_clock_file*)map;
  if (file->magic != FP_CLOCK_PAGE_MAGIC || file->version != FP_CLOCK_PAGE_VERSION) {
    munmap(map, sizeof(struct fp_clock_file));
    errno = EPROTO;
    return -1;
  }
  struct fp_clock_page copy;
  fp_clock_file_copy(file, &copy);
  clock->time_namespace = fp_time_namespace();
  if (!fp_fleet_clock_same_namespace(clock, &copy)) {
    munmap(map, sizeof(struct fp_clock_file));
    errno = ENOTSUP;
    return -1;
  }
  clock->file = file;
  clock->vmclock = fp_vmclock_open(FP_VMCLOCK_PATH);
  clock->device = (uint64_t)st.st_dev;
  clock->inode = (uint64_t)st.st_ino;
  return 0;
}

// Returns 0, or -1 with errno: as fp_fleet_clock_map(), and ENOENT before the first sidecar has started.
static inline int fp_fleet_clock_open(struct fp_fleet_clock* clock, const char* path) {
  clock->file = NULL;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  return fd < 0 ? -1 : fp_fleet_clock_map(clock, fd);
}

// 1 when `path` names another page than the one that is open: close and open again. A sidecar that starts
// anew goes on with the page, so this happens only where it was removed, or after an update to another
// layout. Check it once a second, or when the status is FP_CLOCK_UNKNOWN: it is a system call.
static inline int fp_fleet_clock_stale(const struct fp_fleet_clock* clock, const char* path) {
  struct stat st;
  if (stat(path, &st) != 0) return 1;
  return (uint64_t)st.st_dev != clock->device || (uint64_t)st.st_ino != clock->inode;
}

static inline void fp_fleet_clock_close(struct fp_fleet_clock* clock) {
  // munmap does not have const.
  if (clock->file == NULL) return;
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  if (clock->vmclock != NULL) munmap((void*)(uintptr_t)clock->vmclock, sizeof(struct fp_vmclock));
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  munmap((void*)(uintptr_t)clock->file, sizeof(struct fp_clock_file));
  clock->file = NULL;
}

// Whether the machine was paused since the fleet time of `page` was set, as far as its own clocks and its VMClock show.
static inline int fp_fleet_clock_paused(const struct fp_fleet_clock* clock,
                                        const struct fp_clock_page* page) {
  if (page->suspended_ns >= 0 && fp_suspended_ns() - page->suspended_ns > FP_CLOCK_SUSPEND_NS) return 1;
  return clock->vmclock != NULL && page->vmclock_marker != 0 &&
         __atomic_load_n(&clock->vmclock->disruption_marker, __ATOMIC_RELAXED) + 1 != page->vmclock_marker;
}

// A copy of the page by which readings of CLOCK_MONOTONIC_RAW are converted (fp_clock_at). Returns a reading taken
// while the page was in force.
static inline int64_t fp_fleet_clock_copy(const struct fp_fleet_clock* clock, struct fp_clock_page* copy) {
  const int64_t raw_ns = fp_clock_file_copy(clock->file, copy);
  // Timestamp in the future: the page is from a previous boot. Another namespace: a sidecar has been started
  // there since the page was opened.
  if (raw_ns < copy->bound_ref_raw_ns || !fp_fleet_clock_same_namespace(clock, copy)) {
    copy->status = (uint32_t)FP_CLOCK_UNKNOWN;
  }
  if ((copy->status == FP_CLOCK_SYNCHRONIZED || copy->status == FP_CLOCK_HOLDOVER) &&
      fp_fleet_clock_paused(clock, copy)) {
    copy->status = FP_CLOCK_DISRUPTED;
  }
  return raw_ns;
}

// Fleet time now, with its bound and status: earliest = fleet_ns - bound_ns, latest = fleet_ns + bound_ns.
// Check `status` first: FP_CLOCK_UNKNOWN means that there is no fleet time. Neither a step nor a slew of
// the host clock moves it. Lock-free, no system call but the vDSO's clock_gettime.
static inline struct fp_fleet_time fp_fleet_clock_now(const struct fp_fleet_clock* clock) {
  struct fp_clock_page copy;
  const int64_t raw_ns = fp_fleet_clock_copy(clock, &copy);
  return fp_clock_at(&copy, raw_ns);
}

// A copy of the page by which stamps of the host clock that were taken before this call can be converted
// (fp_clock_convert). virtual_clock : NULL outside of the lab.
static inline void fp_fleet_clock_read(const struct fp_fleet_clock* clock,
                                       const struct fp_virtual_clock* virtual_clock,
                                       struct fp_clock_page* copy) {
  fp_fleet_clock_copy(clock, copy);
  const struct fp_cross_timestamp now = fp_cross_timestamp_now(virtual_clock);
  fp_clock_page_check(copy, &now);
}

#ifdef __cplusplus
}
#endif

#endif  // FABRICPULSE_CLOCK_PAGE_H_
