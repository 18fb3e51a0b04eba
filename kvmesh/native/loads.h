/* What is known of one worker: core.loads.Loads, core.relative_speed.Ratio and
 * core.worker_state.WorkerState, the same attributes and numbers. None of them can be part of a
 * cycle, so the collector does not know them.
 */
#ifndef KVMESH_LOADS_H
#define KVMESH_LOADS_H

#include "core.h"

typedef struct {
    PyObject_HEAD
    PyObject *worker;
    PyObject *prefilling; /* dict: request id -> Booking, oldest first */
    PyObject *shared;     /* dict: sharing key -> requests that hold it */
    long long oldest_tokens; /* uncached tokens of the first in `prefilling`, 0 without any */
    long long prefill_tokens, prompt_tokens, active_requests, active_blocks, expected_blocks;
    long long silent, unseen_requests, unseen_blocks, unseen_tokens;
    double progress_s;
} Loads;

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

extern PyTypeObject loads_type, ratio_type, worker_state_type, formula_type;

/* Prepare the names of a booking's attributes, once; -1 with MemoryError set. */
int loads_ready(void);

/* Return `core.loads.Loads.wait_ms` where there is any backlog. */
static inline double loads_wait_ms(const Loads *self, double rate, double now, double step) {
    double whole_ms = rate * ((double)self->prefill_tokens + step);
    double elapsed_ms = (now - self->progress_s) * 1000.0;
    if (elapsed_ms <= 0.0 || PyDict_GET_SIZE(self->prefilling) == 0) {
        return whole_ms;
    }
    double own_ms = rate * ((double)self->oldest_tokens + step);
    return whole_ms - (elapsed_ms < own_ms ? elapsed_ms : own_ms);
}

/* Count the references of keys up, or down; return how many became held, or free; -1 with an error
 * set.
 */
long long loads_count_keys(Loads *self, PyObject *keys, int up);

/* Return `core.loads.Loads.shared_blocks`, -1 with an error set. `keys` is a tuple, a stride at
 * least 1.
 */
long long loads_shared_blocks(const Loads *self, PyObject *keys, long long stride,
                              long long overlap);

#endif
