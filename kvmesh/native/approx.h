/* What workers probably hold, by what was sent to them lately: core.overlap.approx, compiled. */
#ifndef KVMESH_APPROX_H
#define KVMESH_APPROX_H

#include "leases.h"
#include "search.h"

/* The workers for whom something ends at one time, in the order in which that came to be. */
typedef struct {
    double until;
    Leases **holders; /* strong references, from `first` on */
    uint32_t first, count, room;
} End;

typedef struct {
    PyObject_HEAD
    /* For reading: */
    double next_end;         /* before it there is nothing to expire */
    double ttl_s;
    long long entries;
    PyObject **names;        /* slot -> worker, NULL for a slot without one */
    uint32_t slot_count;
    uint64_t changes;        /* moves whenever a slot is given to a worker or taken from one */
    uint64_t *live;          /* bit s of word w: slot 64 w + s has a worker */
    uint32_t live_words;
    Table *table;
    /* Its own affair: */
    PyObject *leases;        /* dict: worker -> Leases */
    PyObject *statistics;    /* makes what `statistics` returns of its numbers */
    End *ends;               /* by time, from `first_end` on */
    Py_ssize_t first_end, end_count, end_room;
    long long max_entries, prune_to, worker_blocks; /* worker_blocks -1: no limit */
    double longest_tick_s;
    long long expired, pruned, displaced, revoked;
    uint32_t *idle;          /* of slots: free ones (a heap), released ones, those being cleared */
    uint32_t idle_room, free_count, released_count, clearing_count;
    PyObject *dead;          /* mask of those being cleared, NULL when none are */
    int next_shard;
    char thinned, pruning;
    Blocks kept, taken;      /* scratch */
    Drops found;             /* scratch of `find_groups` */
} Approx;

extern PyTypeObject approx_type;

/* Find how far the prompt is believed cached at whom; drops name slots of `names`, and `depth` is
 * in blocks of the prompt, whether blocks are thinned or not. All hashes are given, root first.
 * What ended before now counts until `approx_expire`. -1 with MemoryError set.
 * No Python code runs. */
int approx_find(Approx *self, const uint64_t *hashes, Py_ssize_t count, Drops *found);

/* Drop what ended before or at `now`, at most about `budget` entries (-1: all). 1: nothing of it is
 * left, 0: some is, -1: an error is set. Do `if (self->next_end <= now)` first. No Python code
 * runs. */
int approx_expire(Approx *self, double now, long long budget);

/* Believe the prompt's blocks cached at `worker` (any hashable) from `now` on for `ttl_s`; 0, or -1
 * with an error set. Nothing is done for ttl_s <= 0 or no blocks. Only hash and eq of `worker` may
 * run Python code, which those of a str do not. */
int approx_record(Approx *self, PyObject *worker, const uint64_t *hashes, Py_ssize_t count,
                  double now, double ttl_s);

/* Take the news that `worker` holds these blocks no longer, nor what follows them. As above. */
int approx_revoke(Approx *self, PyObject *worker, const uint64_t *hashes, Py_ssize_t count);

/* Return how many blocks `worker` is believed to hold, -1 with an error set. */
long long approx_blocks(const Approx *self, PyObject *worker);

#endif
