/* What answers teach of an engine that publishes no events, see approx.h. */
#include "beliefs/approx.h"

#include <math.h>

#define FORGOTTEN_AT_ONCE (1 << 14)
#define SURE 4 /* in which direction prompts go on or not is noted so far */
#define FADES 8 /* an answer's length counts for a while: the eighth of it goes with each next one */

/* Return how many of a prompt's kept blocks are among its first `blocks`. */
static Py_ssize_t kept_within(int keeps, Py_ssize_t count, long long blocks) {
    if (approx_keeps_all(keeps, count) || (keeps == KEEP_THINNED && blocks <= WHOLE_BLOCKS)) {
        return (Py_ssize_t)blocks;
    }
    return keeps == KEEP_GRADED ? (Py_ssize_t)graded_count(blocks)
                                : WHOLE_BLOCKS + (Py_ssize_t)(blocks - WHOLE_BLOCKS) / STRIDE;
}

static int forget_behind(Approx *self, Leases *leases, const uint64_t *hashes, Py_ssize_t count,
                         long long cached) {
    Py_ssize_t kept = kept_within(self->keeps, count, cached);
    if (!approx_keeps_all(self->keeps, count)) {
        TRY(approx_keep(self->keeps, hashes, count, count, &self->kept));
        hashes = self->kept.items;
        count = self->kept.count;
    }
    return approx_drop(self, leases, hashes + kept, count - kept);
}

int approx_forget_behind(Approx *self, PyObject *worker, const uint64_t *hashes, Py_ssize_t count,
                         long long cached) {
    Leases *leases = approx_leases(self, worker);
    if (leases == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int failed = cached < count ? forget_behind(self, leases, hashes, count, cached) : 0;
    Py_DECREF(leases);
    return failed;
}

/* Forget what was used no later than the blocks that had gone: the engine dropped that before. */
static int forget_before(Approx *self, Leases *leases, double before) {
    long long left = FORGOTTEN_AT_ONCE;
    while (left > 0 && leases_earliest(leases) <= before) {
        long long gone = approx_take(self, leases, left);
        TRY(gone);
        self->displaced += gone;
        left -= gone;
    }
    return 0;
}

static int resize_slots(Approx *self, Leases *leases, uint32_t count) {
    self->left.count = 0;
    TRY(slots_resize(&leases->slots, count, &self->left));
    return approx_drop(self, leases, self->left.items, self->left.count);
}

/* Return the slot of a lesson's prompt, NULL for none, without an error where others took it since. */
static PromptSlot *slot_of(Approx *self, const Leases *leases, const Lesson *lesson) {
    if (approx_keeps_all(self->keeps, lesson->count)) {
        return slots_find(&leases->slots, lesson->hashes, lesson->count);
    }
    TRY_OR_NULL(approx_keep(self->keeps, lesson->hashes, lesson->count, lesson->count, &self->kept));
    return slots_find(&leases->slots, self->kept.items, self->kept.count);
}

/* Take that part of a prompt was not there: the engine keeps less than it seemed to. The prompt itself
 * is there now: in slots it is where it was put when it was sent, others may have come after it. */
static int keep_less(Approx *self, PyObject *worker, Leases *leases, const Lesson *lesson) {
    if (leases->slots.count) {
        return leases->slots.count > 1 ? resize_slots(self, leases, leases->slots.count - 1) : 0;
    }
    TRY(forget_behind(self, leases, lesson->hashes, lesson->count, lesson->cached));
    TRY(forget_before(self, leases, lesson->before));
    long long least = leases->stands > lesson->count ? leases->stands : lesson->count;
    if (leases->limit < 0 || least < leases->limit) {
        leases->limit = least;
    }
    return approx_record(self, worker, lesson->hashes, lesson->count, lesson->now, lesson->ttl_s,
                         0.0);
}

/* Take that more of a prompt was there than was believed: where what it keeps is all believed to be in
 * use, it keeps more. */
static int keep_more(Approx *self, Leases *leases, const Lesson *lesson) {
    if (leases->slots.count) {
        const PromptSlot *slot = slot_of(self, leases, lesson);
        int full = slots_full(&leases->slots) && (slot == NULL || !slot->fresh);
        return full ? resize_slots(self, leases, leases->slots.count + 1) : no_error();
    }
    if (leases->limit >= 0 && leases->stands >= leases->limit - leases->limit / 8) {
        leases->limit += lesson->cached - lesson->predicted;
        leases->limit = leases->told && leases->told < leases->limit ? leases->told : leases->limit;
    }
    return 0;
}

/* Learn whether prompts go on from the answers before them, where that makes more than a block. */
static void learn_tail(const Approx *self, Leases *leases, PromptSlot *slot, const Lesson *lesson) {
    int whole = approx_keeps_all(self->keeps, lesson->count);
    long long without = whole ? slot->before : approx_depth(self->keeps, slot->before);
    long long tail = slot->tail_before / lesson->block_size, more = lesson->cached - without;
    tail = tail < lesson->count - without ? tail : lesson->count - without;
    if (slot->before && tail > 1) {
        int step = 2 * more >= tail ? 1 : -1;
        leases->goes_on += leases->goes_on * step < SURE ? step : 0;
    }
    slot->tail = lesson->tail;
}

/* Take one lesson; -1 with an error set. */
static int learn(Approx *self, PyObject *worker, Leases *leases, const Lesson *lesson) {
    long long off = lesson->predicted - lesson->cached;
    if (leases->slots.count) {
        PromptSlot *slot = slot_of(self, leases, lesson);
        TRY(no_error());
        if (slot != NULL) {
            learn_tail(self, leases, slot, lesson);
        }
        off -= off > 0 ? leases->output : 0; /* the answer before it, which this prompt left out */
    }
    if (off > lesson->slack) {
        return keep_less(self, worker, leases, lesson);
    }
    return -off > lesson->slack + leases->output ? keep_more(self, leases, lesson) : 0;
}

int approx_learn(Approx *self, PyObject *worker, const Lesson *lesson) {
    Leases *leases = approx_leases(self, worker);
    if (leases == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    leases->learns = 1;
    int failed = learn(self, worker, leases, lesson);
    long long faded = leases->output - leases->output / FADES;
    leases->output = lesson->output > faded ? lesson->output : faded;
    Py_DECREF(leases);
    return failed;
}

Py_ssize_t approx_expect(const Approx *self, const Leases *leases, const uint64_t *hashes,
                         Py_ssize_t count, long long block_size) {
    int whole = approx_keeps_all(self->keeps, count);
    long long tail;
    Py_ssize_t kept = slots_expect(&leases->slots, whole ? hashes : self->kept.items,
                                   whole ? count : self->kept.count, &tail);
    Py_ssize_t depth = whole ? kept : approx_depth(self->keeps, kept);
    long long more = leases->goes_on < 0 ? 0 : tail / block_size;
    return more < count - depth ? depth + (Py_ssize_t)more : count;
}

int approx_bound(Approx *self, PyObject *worker, long long slots, long long blocks) {
    Leases *leases = approx_leases(self, worker);
    if (leases == NULL && (PyErr_Occurred() || (leases = approx_admit(self, worker)) == NULL)) {
        return -1;
    }
    int failed = 0;
    slots = slots > 0 && slots <= MOST_SLOTS ? slots : 0;
    if (slots != leases->slots.told) {
        failed = approx_set_slotted(self, leases, slots > 0) < 0 ||
                 resize_slots(self, leases, (uint32_t)slots) < 0;
        leases->slots.told = failed ? leases->slots.told : (uint32_t)slots;
    }
    if (!failed && blocks != leases->told) {
        leases->told = blocks;
        leases->limit = blocks > 0 && !slots ? blocks : self->worker_blocks;
        failed = approx_displace(self, leases) < 0;
    }
    Py_DECREF(leases);
    return failed ? -1 : 0;
}

int approx_leave(const Approx *self, PyObject *worker, uint64_t taken, double now) {
    PyObject *known = PyDict_GetItemWithError(self->leases, worker);
    if (known != NULL) {
        slots_leave(&((Leases *)known)->slots, taken, now);
    }
    return known == NULL && PyErr_Occurred() ? -1 : 0;
}

int approx_has_slots(const Approx *self, PyObject *worker) {
    PyObject *known = PyDict_GetItemWithError(self->leases, worker);
    return known == NULL ? (PyErr_Occurred() ? -1 : 0) : ((Leases *)known)->slots.count > 0;
}

int approx_keeps(const Approx *self, PyObject *worker, long long *slots, long long *blocks) {
    PyObject *known = PyDict_GetItemWithError(self->leases, worker);
    *slots = known == NULL ? 0 : ((Leases *)known)->slots.count;
    *blocks = known == NULL || ((Leases *)known)->limit < 0 ? 0 : ((Leases *)known)->limit;
    return known == NULL && PyErr_Occurred() ? -1 : 0;
}
