/* What is known of one worker: core.loads.Loads, core.relative_speed.Ratio and
 * core.worker_state.WorkerState, the same attributes and numbers. None of them can be part of a
 * cycle, so the collector does not know them.
 */
#ifndef KVMESH_LOADS_H
#define KVMESH_LOADS_H

#include "core.h"

typedef struct Booking Booking;
typedef struct Loads Loads;

/* One request at one worker: core.loads.Booking. `ob_size` is the number of its sharing keys.
 *
 * While it is live its loads own a reference on it, and it knows them without owning them; the end
 * sets `loads` to NULL. `prefilling` stays set for a request that ended without a first token,
 * `place` says in which list of its loads it stands.
 */
struct Booking {
    PyObject_VAR_HEAD
    Booking *older, *newer; /* neighbours in the list */
    Loads *loads;           /* not owned; NULL: at none */
    PyObject *request_id, *worker, *owner, *hashes; /* `hashes` NULL: let go */
    long long prompt_tokens, uncached_tokens, service_tokens, output_tokens;
    long long private_blocks, expected_blocks, foreseen_blocks;
    double booked_s, renewed_s, output_s, service_s;
    uint8_t streams, prefilling, turn, place;
    uint64_t keys[];
};

/* Bookings in the order in which they came. */
typedef struct {
    Booking *first, *last;
    Py_ssize_t count;
} Queue;

/* The sharing keys that a worker's requests hold, with how many of them do. */
typedef struct {
    uint64_t *keys;
    uint32_t *counts; /* 0: nothing there */
    size_t room, used;
} Shared;

struct Loads {
    PyObject_HEAD
    PyObject *worker;
    long long oldest_tokens; /* uncached tokens of the first in `prefilling`, 0 without any */
    long long prefill_tokens, prompt_tokens, active_requests, active_blocks, expected_blocks;
    long long silent, unseen_requests, unseen_blocks, unseen_tokens;
    double progress_s;
    Queue prefilling, decoding;
    Shared shared;
    void *state, *speed; /* for who decides: the worker's state and speed, not owned */
};

typedef struct {
    PyObject_HEAD
    double ms, tokens, squares, error, factor;
} Ratio;

typedef struct {
    PyObject_HEAD
    PyObject *worker, *info, *report, *gaps;
    Loads *loads;
    Ratio *prefill;
    long long capacity_blocks;
    double failure_share, lost_ms;
    uint64_t asked;    /* number of the last question in which it had any overlap */
    long long overlap; /* blocks in that question */
} WorkerState;

extern PyTypeObject booking_type, loads_type, ratio_type, worker_state_type, formula_type;

/* Return `core.loads.Loads.wait_ms` where there is any backlog. */
static inline double loads_wait_ms(const Loads *self, double rate, double now, double step) {
    double whole_ms = rate * ((double)self->prefill_tokens + step);
    double elapsed_ms = (now - self->progress_s) * 1000.0;
    if (elapsed_ms <= 0.0 || self->prefilling.count == 0) {
        return whole_ms;
    }
    double own_ms = rate * ((double)self->oldest_tokens + step);
    return whole_ms - (elapsed_ms < own_ms ? elapsed_ms : own_ms);
}

/* Return a booking at no worker, with as many keys, all numbers 0 and no names yet; NULL with
 * MemoryError set.
 */
Booking *booking_make(Py_ssize_t keys);

/* Take a booking in, the last of those that wait for their prefill; -1 with an error set and nothing
 * changed.
 */
int loads_begin(Loads *self, Booking *booking, long long stride, double now);

/* Take one that waits for its prefill out of the backlog. */
void loads_end_prefill(Loads *self, Booking *booking);

/* Take more blocks, some of them expected. */
static inline void loads_grow(Loads *self, long long blocks, long long expected) {
    self->active_blocks += blocks;
    self->expected_blocks -= expected;
}

/* Let a booking go whose prefill has ended, and the reference on it. */
void loads_end(Loads *self, Booking *booking, long long stride);

/* Return `core.loads.Loads.shared_blocks`. A stride is at least 1. */
long long loads_shared_blocks(const Loads *self, const uint64_t *keys, Py_ssize_t count,
                              long long stride, long long overlap);

/* The same where key `i` is `hashes[(i + 1) * stride - 1]`: sequence hashes known from the root on. */
long long loads_shared_prefix(const Loads *self, const uint64_t *hashes, Py_ssize_t known,
                              long long stride, long long overlap);

/* Read a tuple of sharing keys into `keys`, which is to be freed by PyMem_Free unless it is `room`;
 * their number, -1 with an error set.
 */
Py_ssize_t read_keys(PyObject *tuple, uint64_t *room, Py_ssize_t room_count, uint64_t **keys);

#endif
