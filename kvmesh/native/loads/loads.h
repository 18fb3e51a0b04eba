/* What workers have in work: bookings of requests, and the sums of each worker.
 *
 * bookings.c is one request at one worker, loads.c one worker's sums, sharing.c the blocks that its requests
 * share, counted once. sequences.c does what bookings do to the sums of all. arrivals.c counts how often
 * requests come, turns.c whose turn it is. Booking and Loads have the attributes of kvmesh/_native.pyi; they cannot be part of a cycle, so the collector does not know them.
 */
#pragma once

#include "base/arguments.h"
#include "prompts/graded.h"

typedef struct Booking Booking;
typedef struct Loads Loads;

/* One request at one worker: `Booking` of Python. `ob_size` is the number of its sharing keys.
 *
 * While it is live its loads own a reference on it, and it knows them without owning them; the end
 * sets `loads` to NULL. `prefilling` stays set for a request that ended without a first token,
 * `place` says in which list of its loads it stands.
 */
struct Booking {
    PyObject_VAR_HEAD
    Booking *older, *newer; /* neighbours in the list */
    Loads *loads;           /* not owned; NULL: at none */
    PyObject *request_id, *worker, *owner; /* of str itself, no subclass */
    PyObject *hashes;                      /* NULL: let go */
    long long prompt_tokens, uncached_tokens, service_tokens, output_tokens;
    long long private_blocks, expected_blocks, foreseen_blocks;
    double booked_s, renewed_s, output_s, service_s;
    uint64_t taken; /* its number at a worker with slots, 0: it took none */
    uint8_t streams, prefilling, turn, place;
    uint16_t keep_s; /* for how long its client wishes its prompt kept */
    uint64_t keys[];
};

/* Bookings in the order in which they came. */
typedef struct {
    Booking *first, *last;
    Py_ssize_t count;
} Queue;

/* The sharing keys that a worker's requests hold, with how many of them do, and the blocks that each
 * stands for: open addressing, a place without holders is empty.
 */
typedef struct {
    uint64_t key;
    uint32_t holders, blocks;
} SharedKey;

typedef struct {
    SharedKey *places;
    size_t room, used; /* `room` is a power of 2, or 0 */
} Shared;

struct Loads {
    PyObject_HEAD
    PyObject *worker; /* of str itself */
    long long oldest_tokens; /* uncached tokens of the first in `prefilling`, 0 without any */
    long long prefill_tokens, prompt_tokens, active_requests, active_blocks, expected_blocks;
    long long silent, unseen_requests, unseen_blocks, unseen_tokens;
    double progress_s;
    Queue prefilling, decoding;
    Shared shared;
    void *state, *speed; /* for who decides: the worker's state and speed, not owned */
};

extern PyTypeObject booking_type, loads_type;

/* Return `Loads.wait_ms` where there is any backlog. */
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
int loads_begin(Loads *self, Booking *booking, double now);

/* Take one out of the backlog, if it is there. */
void loads_end_prefill(Loads *self, Booking *booking);

/* Take more blocks, some of them expected. */
static inline void loads_grow(Loads *self, long long blocks, long long expected) {
    self->active_blocks += blocks;
    self->expected_blocks -= expected;
}

/* Count load that nobody booked in place of what was counted before. */
void loads_correct(Loads *self, long long requests, long long blocks, long long tokens,
                   long long block_size);

/* Let a booking go whose prefill has ended, and the reference on it: hold it. */
void loads_end(Loads *self, Booking *booking);

/* The sharing keys of a prompt: `count` of them, or, without `are_keys`, so many of its sequence
 * hashes, from the root on, of which core.blocks.graded makes some the keys.
 */
typedef struct {
    const uint64_t *hashes;
    Py_ssize_t count;
    int are_keys;
} SharingKeys;

/* Return how many there are. */
static inline long long sharing_count(const SharingKeys *self) {
    return self->are_keys ? self->count : key_count(self->count);
}

/* Return the key of that number, from 1. */
static inline uint64_t sharing_key(const SharingKeys *self, long long number) {
    return self->hashes[(self->are_keys ? number : key_depth(number)) - 1];
}

/* Return how many of the first `count` keys somebody holds, none deeper than one that nobody does. */
long long shared_depth(const Shared *self, const SharingKeys *keys, long long count);

/* Return what `Loads.shared_blocks` does. */
static inline long long loads_shared_blocks(const Loads *self, const SharingKeys *keys,
                                            long long overlap) {
    if (overlap < key_depth(1) || self->shared.used == 0) {
        return 0;
    }
    long long within_overlap = key_count(overlap), count = sharing_count(keys);
    count = within_overlap < count ? within_overlap : count;
    return count < 1 ? 0 : key_depth(shared_depth(&self->shared, keys, count));
}

/* Make room for `more` keys, so that `shared_hold` cannot fail; -1 with MemoryError set. */
int shared_reserve(Shared *self, size_t more);

/* Take a reference on each key; return the blocks of those that had none before. */
long long shared_hold(Shared *self, const uint64_t *keys, Py_ssize_t count);

/* Give a reference of each key back, all of which are held; return the blocks of those that have
 * none left.
 */
long long shared_release(Shared *self, const uint64_t *keys, Py_ssize_t count);

/* Return them as a dict of counts. */
PyObject *shared_dict(const Shared *self);

/* More than any prompt or answer has. */
#define MOST_TOKENS (1LL << 40)
#define MOST_BLOCK_SIZE (1LL << 20) /* sums of MOST_TOKENS such blocks are no more than 63 bits */

static inline long long within(long long low, long long amount, long long high) {
    return amount < low ? low : amount > high ? high : amount;
}
