/* What workers probably hold, see approx.h; approx_type.c is what Python sees of it.
 *
 * Whatever an allocation fails for, counts stay right; a block may then be believed that the table
 * has not, or be left in it until its worker is removed.
 */
#include "base/arrays.h"
#include "beliefs/approx.h"

#include <math.h>

#define TICKS 16
#define FINE_TICKS 4096
#define SLOT_TTL_S 3600.0 /* slots keep what they have until another prompt takes them */
#define SLICE 2048
#define REMOVED_AT_ONCE (1 << 16)
#define FIRST_HOLDERS 4

/* Return where what ends then is, or would be, among the ends. */
static Py_ssize_t place_of(const Approx *self, double until) {
    Py_ssize_t low = self->first_end, high = self->first_end + self->end_count;
    BISECT(low, high, self->ends[middle].until < until);
    return low;
}

static End *end_at(const Approx *self, double until) {
    Py_ssize_t place = place_of(self, until);
    int known = place < self->first_end + self->end_count && self->ends[place].until == until;
    return known ? self->ends + place : NULL;
}

/* Make room for one more holder at a time, so that `add_holder` cannot fail; -1 with MemoryError. */
static int reserve_holder(Approx *self, double until) {
    End *end = end_at(self, until);
    if (end != NULL) {
        if (end->first + end->count < end->room) {
            return 0;
        }
        if (end->first > end->count) {
            memmove(end->holders, end->holders + end->first, end->count * sizeof *end->holders);
            end->first = 0;
            return 0;
        }
        return RAW_GROW(end->holders, end->room, end->room, FIRST_HOLDERS);
    }
    if (self->first_end + self->end_count == self->end_room) {
        if (self->first_end > self->end_count) {
            memmove(self->ends, self->ends + self->first_end,
                    (size_t)self->end_count * sizeof *self->ends);
            self->first_end = 0;
        } else {
            TRY(RAW_GROW(self->ends, self->end_room, self->end_room, 8));
        }
    }
    return self->spare == NULL ? RAW_RESIZE(self->spare, FIRST_HOLDERS) : 0;
}

static void add_holder(Approx *self, double until, Leases *leases) {
    End *end = end_at(self, until);
    if (end == NULL) {
        Py_ssize_t place = place_of(self, until);
        end = self->ends + place;
        memmove(end + 1, end,
                (size_t)(self->first_end + self->end_count - place) * sizeof *self->ends);
        *end = (End){.until = until, .holders = self->spare, .room = FIRST_HOLDERS};
        self->spare = NULL;
        self->end_count++;
    }
    end->holders[end->first + end->count++] = (Leases *)Py_NewRef((PyObject *)leases);
    self->next_end = until < self->next_end ? until : self->next_end;
}

/* Return whose lease ends first of all, borrowed, NULL when there are none. */
static Leases *first_of_all(Approx *self) {
    while (self->end_count) {
        End *end = self->ends + self->first_end;
        self->next_end = end->until;
        while (end->count) {
            Leases *holder = end->holders[end->first];
            if (leases_earliest(holder) == end->until) {
                return holder;
            }
            end->first++;
            end->count--;
            Py_DECREF(holder);
        }
        PyMem_RawFree(end->holders);
        self->end_count--;
        self->first_end = self->end_count ? self->first_end + 1 : 0;
    }
    self->next_end = INFINITY;
    return NULL;
}

/* Take `gone` out of the table as well; -1 with MemoryError set. */
static int forget_gone(Approx *self, Leases *leases) {
    self->entries -= leases->holding->blocks;
    int failed =
        table_take(self->table, leases->holding, self->gone.items, self->gone.count) < 0;
    self->entries += leases->holding->blocks;
    return failed ? -1 : 0;
}

long long approx_take(Approx *self, Leases *leases, long long at_most) {
    self->gone.count = 0;
    int failed = leases_take(leases, at_most, &self->gone) < 0;
    return forget_gone(self, leases) < 0 || failed ? -1 : self->gone.count;
}

int approx_expire(Approx *self, double now, long long budget) {
    if (!(self->next_end <= now)) {
        return 1;
    }
    long long left = budget < 0 ? self->entries + 1 : budget;
    Leases *leases;
    while ((leases = first_of_all(self)) != NULL && self->next_end <= now) {
        if (left <= 0) {
            return 0;
        }
        long long gone = approx_take(self, leases, left);
        TRY(gone);
        self->expired += gone;
        left -= gone;
    }
    return 1;
}

/* Drop up to so many of too many entries, those first that end first; -1 with MemoryError set. */
static int prune(Approx *self, long long at_most) {
    self->pruning = 1;
    while (self->pruning && at_most > 0) {
        long long excess = self->entries - self->prune_to;
        Leases *leases = excess > 0 ? first_of_all(self) : NULL;
        if (leases == NULL) {
            self->pruning = 0;
            break;
        }
        long long gone = approx_take(self, leases, at_most < excess ? at_most : excess);
        TRY(gone);
        self->pruned += gone;
        at_most -= gone;
        self->pruning = gone < excess;
    }
    return 0;
}

/* Give the lowest free slot to `worker`; NO_SLOT with MemoryError set. */
static uint32_t assign_slot(Approx *self, PyObject *worker) {
    uint32_t slot = 0;
    while (slot < self->slot_count && self->states[slot] != SLOT_FREE) {
        slot++;
    }
    if (slot == self->slot_room) {
        uint32_t room = self->slot_room + 64;
        if (RAW_RESIZE(self->names, room) < 0 || RAW_RESIZE(self->states, room) < 0 ||
            RAW_RESIZE(self->live, room / 64) < 0) {
            return NO_SLOT;
        }
        self->live[room / 64 - 1] = 0;
        self->slot_room = room;
    }
    if (slot == self->slot_count) {
        self->slot_count++;
        self->live_words = (self->slot_count + 63) / 64;
    }
    self->names[slot] = Py_NewRef(worker);
    self->states[slot] = SLOT_USED;
    self->live[slot / 64] |= 1ULL << (slot % 64);
    self->changes++;
    return slot;
}

/* Take a slot out of all reads. The name may run code when it goes: that comes last. */
static void leave_slot(Approx *self, uint32_t slot, uint8_t state) {
    PyObject *name = self->names[slot];
    self->names[slot] = NULL;
    self->states[slot] = state;
    self->live[slot / 64] ^= 1ULL << (slot % 64);
    self->changes++;
    Py_DECREF(name);
}

Leases *approx_leases(const Approx *self, PyObject *worker) {
    return (Leases *)Py_XNewRef(PyDict_GetItemWithError(self->leases, worker));
}

Leases *approx_admit(Approx *self, PyObject *worker) {
    uint32_t slot = assign_slot(self, worker);
    if (slot == NO_SLOT) {
        return NULL;
    }
    Leases *made = leases_make(slot);
    PyObject *known = NULL;
    if (made != NULL) {
        known = Py_XNewRef(PyDict_SetDefault(self->leases, worker, (PyObject *)made));
    }
    if (made != NULL) {
        /* A limit of its own counts what it keeps, an engine's the blocks of prompts. */
        made->stride = self->keeps == KEEP_THINNED && self->worker_blocks < 0 ? STRIDE : 1;
        made->limit = self->worker_blocks;
    }
    if (known != (PyObject *)made || made == NULL) { /* no memory, or hash and eq did something */
        leave_slot(self, slot, SLOT_FREE);
    }
    Py_XDECREF(made);
    return (Leases *)known;
}

static int keep_graded(const uint64_t *hashes, Py_ssize_t count, Py_ssize_t blocks, Blocks *kept) {
    TRY(blocks_reserve(kept, (Py_ssize_t)graded_length(count)));
    kept->count = (Py_ssize_t)grade(hashes, count, blocks, kept->items);
    return 0;
}

int approx_keep(int keeps, const uint64_t *hashes, Py_ssize_t count, Py_ssize_t blocks,
                Blocks *kept) {
    kept->count = 0;
    if (keeps == KEEP_GRADED) {
        return keep_graded(hashes, count, blocks, kept);
    }
    TRY(blocks_reserve(kept, WHOLE_BLOCKS + count / STRIDE + 1));
    Py_ssize_t whole = count < WHOLE_BLOCKS ? count : WHOLE_BLOCKS;
    memcpy(kept->items, hashes, (size_t)whole * sizeof *hashes);
    kept->count = whole;
    for (Py_ssize_t at = WHOLE_BLOCKS + STRIDE - 1; at < count; at += STRIDE) {
        kept->items[kept->count++] = hashes[at];
    }
    if (count == blocks && count > WHOLE_BLOCKS && blocks % STRIDE) {
        kept->items[kept->count++] = hashes[count - 1];
    }
    return 0;
}

int approx_find(Approx *self, const uint64_t *hashes, Py_ssize_t count, Drops *found) {
    found->count = 0;
    if (!self->entries) {
        return 0;
    }
    if (approx_keeps_all(self->keeps, count)) {
        return table_search(self->table, NULL, hashes, count, self->live, self->live_words, found);
    }
    TRY(approx_keep(self->keeps, hashes, count, count, &self->kept));
    TRY(table_search(self->table, NULL, self->kept.items, self->kept.count, self->live,
                     self->live_words, found));
    for (Py_ssize_t i = 0; i < found->count; i++) {
        Py_ssize_t depth = approx_depth(self->keeps, found->drops[i].depth);
        found->drops[i].depth = depth < count ? depth : count;
    }
    return 0;
}

/* Compute when the tick ends in which `ttl_s` from now does; -1 with Python's own errors. `fine`: it
 * matters which of two prompts came first. */
static int end_of_tick(const Approx *self, double now, double ttl_s, int fine, double *until) {
    double tick_s = ttl_s / (fine ? FINE_TICKS : TICKS);
    tick_s = self->longest_tick_s < tick_s ? self->longest_tick_s : tick_s;
    REFUSE(tick_s == 0.0, PyExc_ZeroDivisionError, "float division by zero");
    double ticks = ceil((now + ttl_s) / tick_s);
    REFUSE(isnan(ticks), PyExc_ValueError, "cannot convert float NaN to integer");
    *until = ticks * tick_s + 0.0; /* no -0.0 */
    REFUSE(isinf(ticks) || isinf(*until), PyExc_OverflowError,
           "cannot convert float infinity to integer");
    return 0;
}

int approx_displace(Approx *self, Leases *leases) {
    while (leases->limit >= 0 && leases->due_count && leases->stands > leases->limit) {
        long long excess = leases->stands - leases->limit;
        long long gone = approx_take(self, leases, (excess + leases->stride - 1) / leases->stride);
        TRY(gone);
        self->displaced += gone;
    }
    return 0;
}

/* Enter new blocks, and drop others of a worker that has too many then; -1 with MemoryError set. */
static int store(Approx *self, Leases *leases, const uint64_t *updates, Py_ssize_t count) {
    self->entries -= leases->holding->blocks;
    int failed = table_put(self->table, leases->holding, updates, count) < 0;
    self->entries += leases->holding->blocks;
    return failed ? -1 : approx_displace(self, leases);
}

int approx_drop(Approx *self, Leases *leases, const uint64_t *blocks, Py_ssize_t count) {
    self->gone.count = 0;
    int failed = leases_revoke(leases, blocks, count, &self->gone) < 0;
    self->revoked += self->gone.count;
    return forget_gone(self, leases) < 0 || failed ? -1 : 0;
}

/* Follow what becomes of an engine's slots; -1 with MemoryError set. */
static int take_slot(Approx *self, Leases *leases, const uint64_t *blocks, Py_ssize_t count,
                     double now) {
    self->left.count = 0;
    TRY(slots_take(&leases->slots, blocks, count, now, &self->left));
    self->taken = leases->slots.taken;
    return approx_drop(self, leases, self->left.items, self->left.count);
}

/* Believe blocks cached at a worker. No Python code runs. -1 with MemoryError set. */
static int believe(Approx *self, Leases *leases, const uint64_t *blocks, Py_ssize_t count,
                   double until) {
    int new_end;
    TRY(reserve_holder(self, until));
    Py_ssize_t low = leases_extend(leases, blocks, count, until, self->table, &new_end);
    if (new_end) {
        add_holder(self, until, leases);
    }
    if (low < 0 || (low < count && store(self, leases, blocks + low, count - low) < 0)) {
        return -1;
    }
    if (self->pruning || self->entries > self->max_entries) {
        long long slice = 2 * (long long)(count - low);
        return prune(self, slice > SLICE ? slice : SLICE);
    }
    return 0;
}

/* Believe what is to be kept of a prompt; `kept`: the hashes given are that. */
static int record(Approx *self, PyObject *worker, const uint64_t *hashes, Py_ssize_t count,
                  double now, double ttl_s, int kept) {
    double until;
    self->before = -INFINITY;
    self->taken = 0;
    TRY_IF(self->next_end <= now, approx_expire(self, now, SLICE));
    if (!count || ttl_s <= 0) {
        return 0;
    }
    Leases *leases = approx_leases(self, worker);
    if (leases == NULL && PyErr_Occurred()) {
        return -1;
    }
    int slotted = leases != NULL && leases->slots.count, learns = leases != NULL && leases->learns;
    int failed = end_of_tick(self, now, slotted && ttl_s < SLOT_TTL_S ? SLOT_TTL_S : ttl_s,
                             learns && !slotted, &until) < 0;
    if (!failed && leases == NULL) {
        failed = (leases = approx_admit(self, worker)) == NULL;
    }
    if (!failed && leases->slot == NO_SLOT) {
        PyErr_SetString(PyExc_RuntimeError, "a worker was removed by its own name");
        failed = 1;
    }
    if (!failed && !kept && !approx_keeps_all(self->keeps, count)) {
        failed = approx_keep(self->keeps, hashes, count, count, &self->kept) < 0;
        hashes = self->kept.items;
        count = self->kept.count;
    }
    failed = failed || believe(self, leases, hashes, count, until) < 0 ||
             (slotted && take_slot(self, leases, hashes, count, now) < 0);
    if (!failed) {
        self->before = leases->before;
    }
    Py_XDECREF(leases);
    return failed ? -1 : 0;
}

int approx_record(Approx *self, PyObject *worker, const uint64_t *hashes, Py_ssize_t count,
                  double now, double ttl_s, double keep_s) {
    int kept = ttl_s > 0 && keep_s > ttl_s && self->entries < self->max_entries / 2;
    return record(self, worker, hashes, count, now, kept ? keep_s : ttl_s, 0);
}

int approx_record_graded(Approx *self, PyObject *worker, const uint64_t *graded, Py_ssize_t count,
                         long long blocks, double now, double ttl_s) {
    REFUSE(self->keeps != KEEP_GRADED, PyExc_ValueError,
           "an index that keeps no graded blocks takes whole prompts");
    long long most = blocks > 0 ? graded_length(blocks) : 0;
    return record(self, worker, graded, most < count ? (Py_ssize_t)most : count, now, ttl_s, 1);
}

int approx_revoke(Approx *self, PyObject *worker, const uint64_t *hashes, Py_ssize_t count) {
    Leases *leases = approx_leases(self, worker);
    if (leases == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int failed = leases->holding->blocks ? approx_drop(self, leases, hashes, count) : 0;
    Py_DECREF(leases);
    return failed;
}

long long approx_blocks(const Approx *self, PyObject *worker) {
    PyObject *leases = PyDict_GetItemWithError(self->leases, worker);
    if (leases == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    return ((Leases *)leases)->holding->blocks;
}

int approx_set_slotted(Approx *self, Leases *leases, int slotted) {
    if (slotted == (leases->slotted > 0)) {
        return 0;
    }
    if (slotted) {
        TRY(RAW_GROW(self->slotted, self->slotted_count, self->slotted_room, 4));
        self->slotted[self->slotted_count] = leases;
        leases->slotted = ++self->slotted_count;
        return 0;
    }
    Leases *last = self->slotted[--self->slotted_count];
    self->slotted[leases->slotted - 1] = last;
    last->slotted = leases->slotted;
    leases->slotted = 0;
    return 0;
}

int approx_remove(Approx *self, PyObject *worker) {
    Leases *leases = approx_leases(self, worker);
    if (leases == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int failed = PyDict_DelItem(self->leases, worker) < 0;
    uint32_t slot = leases->slot;
    if (!failed && slot != NO_SLOT) {
        self->entries -= leases->holding->blocks;
        leases->slot = NO_SLOT;
        approx_set_slotted(self, leases, 0);
        leases_clear(leases);
        self->released++;
        leave_slot(self, slot, SLOT_RELEASED);
        failed = self->released > MAX_RELEASED && approx_sweep(self, REMOVED_AT_ONCE) < 0;
    }
    Py_DECREF(leases);
    return failed ? -1 : 0;
}

/* Begin the walk over the table that clears the released slots; -1 with MemoryError set. */
static int begin_walk(Approx *self) {
    uint64_t *words = PyMem_Calloc(self->live_words, sizeof *words);
    NEED_MEMORY(words);
    for (uint32_t slot = 0; slot < self->slot_count; slot++) {
        if (self->states[slot] == SLOT_RELEASED || self->states[slot] == SLOT_CLEARING) {
            words[slot / 64] |= 1ULL << (slot % 64);
        }
    }
    self->dead = mask_int(words, self->live_words);
    PyMem_Free(words);
    NEED(self->dead);
    for (uint32_t slot = 0; slot < self->slot_count; slot++) {
        if (self->states[slot] == SLOT_RELEASED) {
            self->states[slot] = SLOT_CLEARING;
        }
    }
    self->next_shard = 0;
    self->next_hash = 0;
    return 0;
}

static void end_walk(Approx *self) {
    for (uint32_t slot = 0; slot < self->slot_count; slot++) {
        if (self->states[slot] == SLOT_CLEARING) {
            self->states[slot] = SLOT_FREE;
            self->released--;
        }
    }
    Py_CLEAR(self->dead);
}

/* Clear the next slice of a shard; return about how many blocks it had, -1 with MemoryError set. */
static int64_t clear_slice(Approx *self) {
    int64_t blocks = table_clear_some(self->table, self->next_shard, self->dead, &self->next_hash);
    self->next_shard += blocks >= 0 && self->next_hash == 0;
    return blocks;
}

int approx_sweep(Approx *self, long long budget) {
    while (budget > 0 && self->released) {
        TRY_IF(self->dead == NULL, begin_walk(self));
        if (self->next_shard == SHARDS) {
            end_walk(self);
            continue;
        }
        int64_t blocks = clear_slice(self);
        TRY(blocks);
        budget -= blocks + 1;
    }
    return !self->released;
}

void approx_free(Approx *self) {
    for (Py_ssize_t i = 0; i < self->end_count; i++) {
        End *end = self->ends + self->first_end + i;
        for (uint32_t at = 0; at < end->count; at++) {
            Py_DECREF(end->holders[end->first + at]);
        }
        PyMem_RawFree(end->holders);
    }
    for (uint32_t slot = 0; slot < self->slot_count; slot++) {
        Py_XDECREF(self->names[slot]);
    }
    RAW_FREE_ALL(self->ends, self->spare, self->names, self->states, self->live, self->kept.items,
                 self->gone.items, self->left.items, self->slotted);
    Py_CLEAR(self->dead);
    drops_free(&self->found);
}
