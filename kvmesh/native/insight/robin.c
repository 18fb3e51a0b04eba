/* RoundRobinShadow: what plain round robin would have found cached. */
#include "base/arrays.h"
#include "base/recent.h"
#include "base/shell.h"
#include "insight/readers.h"

#include <math.h>

/* Cache of a worker that does not say how large its own is, blocks; blocks that an entry stands
 * for, doubled until the caches of the fleet fit into the bound; behind so many strides of a prompt
 * gaps grow with the depth.
 */
enum { DEFAULT_WORKER_BLOCKS = 16384, STRIDE = 8, FINE_STRIDES = 16, MOST_WORKERS = 1 << 20 };
#define LONGEST (1LL << 24)
#define MOST_BLOCKS (1LL << 40)

/* What a worker has cached; `count` of an entry are the blocks that it stands for. */
typedef struct {
    Recent entries;
    long long blocks;
} Cache;

typedef struct {
    PyObject_HEAD
    Cache *caches;
    long long *depths;
    uint64_t *keys; /* room for one prompt's: `depth_count` + 1 */
    Py_ssize_t cache_count, depth_count;
    long long max_entries, stride, workers, worker_blocks;
    double replicas, turn, turns;
} Shadow;

static void drop(Cache *cache, RecentEntry *entry) {
    cache->blocks -= entry->count;
    recent_remove(&cache->entries, entry);
}

static void coarsen(Cache *cache, long long at_least) {
    RecentEntry *entries = cache->entries.entries;
    for (uint32_t at = cache->entries.oldest; at; at = entries[at - 1].after) {
        if (entries[at - 1].count < at_least) {
            cache->blocks += at_least - entries[at - 1].count;
            entries[at - 1].count = at_least;
        }
    }
}

/* Return how many of the keys, the first ones, were cached; -1 with MemoryError set. */
static Py_ssize_t put(Cache *cache, const Shadow *self, Py_ssize_t count, long long last) {
    Recent *entries = &cache->entries;
    Py_ssize_t found = 0;
    while (found < count && recent_find(entries, self->keys[found]) != NULL) {
        found++;
    }
    for (Py_ssize_t place = count - 1; place >= found; place--) {
        long long depth = place == count - 1 ? last : self->depths[place];
        long long gap = depth - (place ? self->depths[place - 1] : 0);
        RecentEntry *entry = recent_find(entries, self->keys[place]);
        if (entry != NULL) {
            drop(cache, entry);
        }
        TRY(recent_reserve(entries, 1));
        entry = recent_add(entries, self->keys[place]);
        entry->count = gap > self->stride ? gap : self->stride;
        cache->blocks += entry->count;
    }
    for (Py_ssize_t place = found - 1; place >= 0; place--) {
        recent_touch(entries, recent_find(entries, self->keys[place]));
    }
    while (cache->blocks > self->worker_blocks && entries->count > 1) {
        drop(cache, entries->entries + entries->oldest - 1);
    }
    return found;
}

/* Note where entries stand in a prompt of LONGEST blocks; -1 with MemoryError set. */
static int note_depths(Shadow *self) {
    Py_ssize_t count = 0, room = 1024;
    TRY(RESIZE(self->depths, room));
    long long *depths = self->depths;
    for (long long depth = 1; depth < self->stride && depth <= LONGEST; depth *= 2) {
        depths[count++] = depth;
    }
    for (long long depth = self->stride, gap = depth; depth <= LONGEST; depth += gap) {
        depths[count++] = depth;
        if (depth == gap * FINE_STRIDES) {
            gap *= 2;
        }
    }
    self->depth_count = count;
    return 0;
}

/* Follow the fleet; -1 with MemoryError set. */
static int resize(Shadow *self, long long workers, long long blocks, double replicas) {
    double turns = (double)workers / replicas;
    self->worker_blocks = 0; /* no fleet has that: what fails here is done again */
    self->turns = turns > 1.0 ? turns : 1.0;
    long long modelled = (long long)self->turns;
    self->stride = STRIDE;
    while (modelled * (blocks / self->stride) > self->max_entries) {
        self->stride *= 2;
    }
    TRY(note_depths(self));
    for (Py_ssize_t i = 0; i < self->cache_count; i++) {
        coarsen(&self->caches[i], self->stride);
    }
    if (modelled > self->cache_count) {
        TRY(RESIZE(self->caches, modelled));
        memset(self->caches + self->cache_count, 0,
               (size_t)(modelled - self->cache_count) * sizeof *self->caches);
        self->cache_count = modelled;
    }
    self->workers = workers;
    self->worker_blocks = blocks;
    self->replicas = replicas;
    return 0;
}

/* Return the blocks that were cached, -1 for a turn that is not modelled, -2 with an error set. */
static long long route(Shadow *self, const uint64_t *hashes, Py_ssize_t whole) {
    self->turn = fmod(self->turn + 1.0, self->turns);
    if (self->turn >= (double)(long long)self->turns) {
        return -1;
    }
    Py_ssize_t low = 0, high = self->depth_count;
    BISECT(low, high, self->depths[middle] <= whole);
    Py_ssize_t count = low;
    if (count && self->depths[count - 1] != whole) {
        count++;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        self->keys[i] = hashes[(i < low ? self->depths[i] : whole) - 1];
    }
    long long last = count > low ? whole : count ? self->depths[count - 1] : 0;
    Py_ssize_t found = put(&self->caches[(Py_ssize_t)self->turn], self, count, last);
    if (found < 0) {
        return -2;
    }
    if (found == 0 || found == count) {
        return found ? whole : 0;
    }
    long long after = found == count - 1 ? last : self->depths[found];
    return (self->depths[found - 1] + after - 1) / 2;
}

static PyObject *route_method(Shadow *self, NAMED_ARGUMENTS) {
    PyObject *hashes;
    long long workers, blocks;
    double replicas = 1.0;
    GivenU64s prompt = {.at = NULL};
    if (READ("route", "OLL|d", "hashes workers worker_blocks replicas", &hashes, &workers, &blocks,
             &replicas) < 0 ||
        u64s_read(&prompt, hashes) < 0) {
        u64s_close(&prompt);
        return NULL;
    }
    workers = workers < MOST_WORKERS ? workers : MOST_WORKERS;
    blocks = blocks > 0 ? blocks : DEFAULT_WORKER_BLOCKS;
    blocks = blocks < MOST_BLOCKS ? blocks : MOST_BLOCKS;
    replicas = replicas > 1.0 ? replicas : 1.0;
    int same = workers == self->workers && blocks == self->worker_blocks &&
               replicas == self->replicas;
    long long found = same || resize(self, workers, blocks, replicas) == 0
                          ? route(self, prompt.at, prompt.count)
                          : -2;
    u64s_close(&prompt);
    return found == -2 ? NULL : found == -1 ? Py_NewRef(Py_None) : PyLong_FromLongLong(found);
}

static PyObject *entries_method(Shadow *self, PyObject *Py_UNUSED(none)) {
    long long count = 0;
    for (Py_ssize_t i = 0; i < self->cache_count; i++) {
        count += self->caches[i].entries.count;
    }
    return PyLong_FromLongLong(count);
}

static PyObject *shadow_new(NEW_ARGUMENTS) {
    long long most;
    TRY_OR_NULL(READ_NEW("RoundRobinShadow", "L", "max_entries", &most));
    REFUSE_OR_NULL(most < 1, PyExc_ValueError, "a shadow keeps at least 1 entry, not %lld", most);
    Shadow *self = (Shadow *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    self->max_entries = most;
    self->turns = 1.0;
    self->keys = PyMem_Calloc(1024 + 1, sizeof *self->keys);
    if (self->keys == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void shadow_dealloc(Shadow *self) {
    for (Py_ssize_t i = 0; i < self->cache_count; i++) {
        recent_free(&self->caches[i].entries);
    }
    FREE_ALL(self->caches, self->depths, self->keys);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

METHODS(methods,
    METHOD_KEYWORDS("route", route_method),
    METHOD_NOARGS("entries", entries_method))

PyTypeObject robin_shadow_type = {
    TYPE("RoundRobinShadow", Shadow, shadow),
    .tp_methods = methods,
};
