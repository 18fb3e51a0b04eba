/* What workers probably hold, by what was sent to them lately: core.index.approx, compiled. */
#pragma once

#include "beliefs/leases.h"
#include "index/search.h"
#include "prompts/graded.h"

/* The workers for whom something ends at one time, in the order in which that came to be. */
typedef struct {
    double until;
    Leases **holders; /* strong references, from `first` on */
    uint32_t first, count, room;
} End;

typedef struct {
    PyObject_HEAD
    /* To be read: */
    double next_end;       /* before it there is nothing to expire */
    double ttl_s;
    long long entries;
    PyObject **names;      /* slot -> worker, NULL for a slot without one */
    uint32_t slot_count;
    uint64_t changes;      /* moves whenever a slot is given to a worker or taken from one */
    uint64_t *live;        /* bit s of word w: slot 64 w + s has a worker */
    uint32_t live_words;
    Table *table;
    /* Its own affair: */
    PyObject *leases;      /* dict: worker -> Leases */
    PyObject *statistics;  /* makes what `statistics` returns of its numbers */
    End *ends;             /* by time, from `first_end` on */
    Py_ssize_t first_end, end_count, end_room;
    Leases **spare;        /* holders of the next end */
    long long max_entries, prune_to, worker_blocks; /* worker_blocks -1: no limit */
    double longest_tick_s;
    long long expired, pruned, displaced, revoked;
    uint8_t *states;       /* slot -> SLOT_… */
    uint32_t slot_room, released;
    PyObject *dead;        /* mask of the slots that a walk over the table clears, NULL for no walk */
    uint32_t next_shard;
    uint64_t next_hash; /* of the next slice of it */
    char keeps, pruning;   /* keeps: KEEP_… */
    double before;  /* until when the last of the blocks was believed that were recorded last and
                     * were believed already; -inf: none */
    uint64_t taken; /* number of the request whose prompt was recorded last, where it took a slot; 0 */
    Blocks kept, gone, left; /* scratch */
    Leases **slotted;      /* borrowed: those of workers that keep prompts in slots */
    Py_ssize_t slotted_count, slotted_room;
    Drops found;           /* scratch of `find_groups` */
} Approx;

/* Which of a prompt's blocks an index keeps: each, those that `new_approx` (core.index.approx) says,
 * or those of core.blocks.graded.
 */
enum { KEEP_ALL, KEEP_THINNED, KEEP_GRADED, KEEPS };

enum { SLOT_FREE, SLOT_USED, SLOT_RELEASED, SLOT_CLEARING };

#define MAX_RELEASED 256 /* slots of removed workers that wait for a sweep */

extern PyTypeObject approx_type;

/* Find how far the prompt is believed cached at whom; drops name slots of `names`, and `depth` is
 * in blocks of the prompt, however few of them are kept. All hashes are given, root first.
 * What ended before now counts until `approx_expire`. -1 with MemoryError set.
 * No Python code runs. */
int approx_find(Approx *self, const uint64_t *hashes, Py_ssize_t count, Drops *found);

/* Drop what ended before or at `now`, at most about `budget` entries (-1: all). 1: nothing of it is
 * left, 0: some is, -1: MemoryError is set. Do `if (self->next_end <= now)` first. No Python code
 * runs. */
int approx_expire(Approx *self, double now, long long budget);

/* Believe the prompt's blocks cached at `worker` (any hashable) from `now` on for `ttl_s`, or for
 * `keep_s` where that is longer and half of the entries are free: what ends first is dropped first, so
 * those who wish for more time must not take all of them. 0, or -1 with an error set. Nothing is done for
 * ttl_s <= 0 or no blocks. Only hash and eq of `worker` may run Python code, which those of a str do not.
 */
int approx_record(Approx *self, PyObject *worker, const uint64_t *hashes, Py_ssize_t count,
                  double now, double ttl_s, double keep_s);

/* The same of a prompt of so many `blocks` whose graded hashes are given, as `grade` makes them, for an
 * index that keeps those; those beyond `graded_length(blocks)` do not count. */
int approx_record_graded(Approx *self, PyObject *worker, const uint64_t *graded, Py_ssize_t count,
                         long long blocks, double now, double ttl_s);

/* Take the news that `worker` holds these blocks no longer, nor what follows them. As above. */
int approx_revoke(Approx *self, PyObject *worker, const uint64_t *hashes, Py_ssize_t count);

/* Return how many blocks `worker` is believed to hold, -1 with an error set. */
long long approx_blocks(const Approx *self, PyObject *worker);

/* Forget everything believed of `worker`; 0, -1 with an error set. */
int approx_remove(Approx *self, PyObject *worker);

/* Do about `budget` blocks of cleaning up after removals; 1: nothing is left, 0, -1. */
int approx_sweep(Approx *self, long long budget);

/* Return whether each of so many blocks is kept. */
static inline int approx_keeps_all(int keeps, Py_ssize_t blocks) {
    return keeps == KEEP_ALL || (keeps == KEEP_THINNED && blocks <= WHOLE_BLOCKS);
}

/* Keep of a prompt's first `count` hashes what is to be kept; it has so many `blocks`. -1 with
 * MemoryError set. */
int approx_keep(int keeps, const uint64_t *hashes, Py_ssize_t count, Py_ssize_t blocks,
                Blocks *kept);

/* Return where in a prompt the kept block of that number, from 1, stands, if not last. */
static inline Py_ssize_t approx_depth(int keeps, Py_ssize_t kept) {
    if (keeps == KEEP_GRADED) {
        return (Py_ssize_t)graded_depth(kept);
    }
    return kept <= WHOLE_BLOCKS ? kept : WHOLE_BLOCKS + STRIDE * (kept - WHOLE_BLOCKS);
}

/* Return the leases of a worker, a new reference; NULL without an error when there are none. */
Leases *approx_leases(const Approx *self, PyObject *worker);

/* Make them; a new reference, NULL with an error set. */
Leases *approx_admit(Approx *self, PyObject *worker);

/* Drop up to so many blocks of one worker, those that end first; return how many, perhaps none, -1 with
 * MemoryError set. */
long long approx_take(Approx *self, Leases *leases, long long at_most);

/* Drop blocks of one worker, and what follows them; -1 with MemoryError set. */
int approx_drop(Approx *self, Leases *leases, const uint64_t *blocks, Py_ssize_t count);

/* Drop of one worker what it has no room for, used least recently; -1 with MemoryError set. */
int approx_displace(Approx *self, Leases *leases);

/* Take what an engine says it keeps: so many prompts, one in each slot, 0: it has no slots or says
 * nothing of them; so many blocks, 0: it does not say. 0, -1 with an error set. */
int approx_bound(Approx *self, PyObject *worker, long long slots, long long blocks);

/* Note whether an engine has slots; -1 with MemoryError set, which is not where it has none. */
int approx_set_slotted(Approx *self, Leases *leases, int slotted);

/* What an answer told of its engine's cache, in blocks of the prompt, which was recorded when it was
 * sent. `before`: `Approx.before` then; `slack`: what may differ; `output`: blocks of the answer. */
typedef struct {
    const uint64_t *hashes;
    Py_ssize_t count;
    long long predicted, cached, slack, output;
    double before, now, ttl_s;
    long long tail, block_size; /* tokens of prompt and answer behind the blocks; of a block */
} Lesson;

/* Believe what an answer tells: what was predicted and had gone is forgotten, with all that was used
 * before it, and the engine keeps less; what was there all the same, and more than an answer follows a
 * prompt that was believed, shows that it keeps more. Amortised O(blocks of the prompt, and dropped);
 * 0, -1 with an error set. */
int approx_learn(Approx *self, PyObject *worker, const Lesson *lesson);

/* Forget what is believed of a prompt behind its first `cached` blocks; 0, -1 with an error set. */
int approx_forget_behind(Approx *self, PyObject *worker, const uint64_t *hashes, Py_ssize_t count,
                         long long cached);

/* Return how deep a prompt is expected to be cached at a worker with slots, in the slot that it would
 * take; that keeps the answer to its prompt, too. After `approx_find` of the same prompt. */
Py_ssize_t approx_expect(const Approx *self, const Leases *leases, const uint64_t *hashes,
                         Py_ssize_t count, long long block_size);

/* Take that a request is over that took a slot, as number `taken`; 0, -1 with an error set. */
int approx_leave(const Approx *self, PyObject *worker, uint64_t taken, double now);

/* Return whether an engine keeps prompts in slots, in the order in which they were sent; -1 with an error
 * set. */
int approx_has_slots(const Approx *self, PyObject *worker);

/* Write how many prompts and blocks an engine seems to keep, 0: not known; -1 with an error set. */
int approx_keeps(const Approx *self, PyObject *worker, long long *slots, long long *blocks);

/* Give back everything but `leases`, `table` and `statistics`. */
void approx_free(Approx *self);
