/* What every worker has been given and has not finished yet: core.members.loads, compiled.
 *
 * Where nothing else is said no function runs anybody else's code, and a borrowed booking stays
 * valid until the next call that may end it.
 */
#pragma once

#define OVERDUE 1.5

#include "loads/loads.h"

/* How often requests come. */
typedef struct {
    PyObject_HEAD
    double count, first_s, last_s;
} Arrivals;

/* core.members.loads.ActiveSequences */
typedef struct {
    PyObject_HEAD
    PyObject *bookings; /* dict: request id -> Booking, oldest first */
    PyObject *loads;    /* dict: worker -> Loads */
    PyObject *silent;   /* dict: worker -> Loads: those with prefills that nobody will see end */
    PyObject *turns;    /* dict: see turns.h */
    PyObject *statistics; /* what makes a core.members.loads.SequencesStatistics */
    Arrivals *arrivals;
    long long block_size, generation;
    long long unstreamed; /* live bookings that do not stream */
    long long expired, dropped_with_worker, dropped_with_owner;
    double lease_s, settled_s;
} Sequences;

/* What one request asks of its worker: core.members.loads.Demand. */
typedef struct {
    long long prompt_tokens, uncached_tokens, expected_output_tokens;
    SharingKeys keys;
    PyObject *hashes; /* kept until the first token; NULL: none. Of a peer's: the bytes of its graded
                       * hashes */
    PyObject *owner;  /* a str; NULL: this replica */
    int streams, turn;
    long long keep_s; /* for how long the prompt shall be kept, seconds; 0: nobody said */
} DemandC;

/* Ms per uncached token of a worker; -1 with an error set. May run anything. */
typedef int (*SpeedOf)(void *context, Loads *loads, double *ms_per_token);

extern PyTypeObject arrivals_type, sequences_type;

/* Prepare constants and names, once; -1 with an error set. */
int sequences_ready(void);
int arrivals_ready(void);

void arrivals_fold(Arrivals *self, double now);
double arrivals_per_ms(const Arrivals *self, double now);

static inline double sequences_arrivals_per_ms(const Sequences *self, double now) {
    return arrivals_per_ms(self->arrivals, now);
}

/* Return the worker's sums, made when absent; borrowed; NULL with an error set. */
Loads *sequences_loads(Sequences *self, PyObject *worker);

/* Return whether a prompt that is sent to a worker now is cached there only later: the worker is among those
 * that cache late, a dict of the scores of core.members.late_prompts, and waits for others' prefills or is
 * known to cache nothing while it prefills. -1 with an error set.
 */
int sequences_late(Sequences *self, PyObject *late_workers, PyObject *worker);

/* Return a live booking, borrowed; NULL without an error: there is none. */
Booking *sequences_find(Sequences *self, PyObject *request_id);

/* Book a request. A new reference; NULL without an error: it was booked already. `request_id` and
 * `worker` are strs. Should counting its turn raise MemoryError, the booking stands.
 */
Booking *sequences_book(Sequences *self, PyObject *request_id, PyObject *worker,
                        const DemandC *demand, double now);

/* Note the end of a prefill; 1 the first time, else 0. Lets `hashes` go: hold the booking. */
int sequences_first_token(Sequences *self, Booking *booking, double now);

/* Raise an output to `output_tokens` in total. */
void sequences_grow(Sequences *self, Booking *booking, long long output_tokens, double now);

/* Count so many blocks of expected output as come unseen. */
void sequences_foresee(Booking *booking, long long blocks);

/* Release a request; 1 the first time, 0 when it was not live, -1 with an error set. Hold the
 * booking; `booking->loads` is NULL afterwards.
 */
int sequences_finish(Sequences *self, Booking *booking);

/* Take a sign of life for every booking of one owner, a str. */
void sequences_renew_owner(Sequences *self, PyObject *owner, double now);

/* End the prefills that nobody will see end, once they are overdue by half; -1 when `speed_of` said
 * so.
 */
int sequences_settle(Sequences *self, double now, SpeedOf speed_of, void *context);
