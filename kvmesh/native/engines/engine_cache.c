/* EngineCache: an engine's batches in, prefix-closed events out, over `Residents`; in Python it is
 * tests/reference/engines/cache.py. Nothing of it runs while it runs: a call from within one of its own is
 * refused. */
#include "base/shell.h"
#include "engines/engines.h"
#include "engines/residents.h"

typedef struct {
    PyObject_HEAD
    EngineNames names;
    EventTypes types;
    EngineBatch batch;
    Residents residents;
    long long unknown_fields, unknown_tags;
    char complete;
    char busy;
    char broken; /* memory ran out in the middle of a change: all is forgotten until somebody says so */
} EngineCache;

static const char *const name_of[] = {"tiers", "full", "root_of", "stored", "removed", "cleared"};

static PyObject **parts_of(EngineCache *self, int at) {
    PyObject **const parts[] = {
        &self->names.tiers,  &self->names.full,    &self->names.root_of,
        &self->names.stored, &self->names.removed, &self->names.cleared,
        &self->types.stored, &self->types.removed, &self->types.cleared,
    };
    return parts[at];
}

#define PARTS 9

static int read_limits(EngineCache *self, PyObject *limits) {
    long long hidden, run;
    if (!PyArg_ParseTuple(limits, "LLILL:limits", &self->residents.most_blocks, &self->residents.most_twins,
                          &self->residents.most_references, &hidden, &run)) {
        return -1;
    }
    REFUSE(hidden < 0 || run < 1, PyExc_ValueError,
           "at least 0 blocks are hidden, and a run has at least 1");
    self->residents.contents.max_hidden = hidden;
    self->residents.contents.max_run = (Py_ssize_t)run;
    return 0;
}

static int read_size(EngineCache *self, PyObject *size) {
    self->residents.block_size = size == Py_None ? -1 : PyLong_AsLongLong(size);
    if (size != Py_None && self->residents.block_size < 0) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "block_size is %lld, it must be at least 0",
                         self->residents.block_size);
        }
        return -1;
    }
    return 0;
}

static int read_parts(EngineCache *self, PyObject *names, PyObject *types) {
    for (int at = 0; at < PARTS; at++) {
        PyObject *from = at < 6 ? names : types;
        *parts_of(self, at) = Py_XNewRef(PyTuple_GetItem(from, at < 6 ? at : at - 6));
        if (*parts_of(self, at) == NULL) {
            return -1;
        }
    }
    REFUSE(!PyDict_CheckExact(self->names.tiers) || !PyFrozenSet_CheckExact(self->names.full),
           PyExc_TypeError, "%s are a dict, and %s a frozenset", name_of[0], name_of[1]);
    return 0;
}

static PyObject *cache_new(NEW_ARGUMENTS) {
    PyObject *size, *names, *types, *limits;
    long long farthest;
    int secret;
    TRY_OR_NULL(READ_NEW("EngineCache", "OpLTTT", "block_size secret farthest names types limits",
                         &size, &secret, &farthest, &names, &types, &limits));
    EngineCache *self = (EngineCache *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    residents_init(&self->residents);
    self->complete = 1;
    self->names.farthest = (int)farthest;
    self->names.secret = secret;
    if (read_limits(self, limits) < 0 || read_size(self, size) < 0 || read_parts(self, names, types) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int cache_traverse(EngineCache *self, visitproc visit, void *arg) {
    for (int at = 0; at < PARTS; at++) {
        Py_VISIT(*parts_of(self, at));
    }
    return 0;
}

/* Types and functions stay while anything may still call: they lead back here only by a crafted one. */
static void cache_dealloc(EngineCache *self) {
    PyObject_GC_UnTrack(self);
    residents_clear(&self->residents);
    engine_batch_free(&self->batch);
    for (int at = 0; at < PARTS; at++) {
        Py_CLEAR(*parts_of(self, at));
    }
    Py_TYPE(self)->tp_free(self);
}

static int begin(EngineCache *self) {
    REFUSE(self->busy, PyExc_RuntimeError, "an engine's cache is changed while it changes");
    self->busy = 1;
    return 0;
}

/* Forget everything because a change broke off in the middle. */
static void break_off(EngineCache *self) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    residents_clear(&self->residents);
    self->broken = 1;
    self->complete = 0;
    PyErr_Restore(type, value, traceback);
}

/* Fold the batch that was read; NULL with an error set. */
static PyObject *fold(EngineCache *self) {
    PyObject *events = PyList_New(0);
    NEED_OR_NULL(events);
    self->unknown_fields += self->batch.unknown_fields;
    self->unknown_tags += self->batch.unknown_tags;
    for (Py_ssize_t at = 0; at < self->batch.count; at++) {
        const EngineEvent *event = self->batch.events + at;
        self->complete |= event->what == ENGINE_CLEARED;
        if (residents_fold(&self->residents, &self->batch, event, &self->types, events) < 0) {
            Py_CLEAR(events);
            break_off(self);
            break;
        }
    }
    return events;
}

static int check_whole(const EngineCache *self) {
    REFUSE(self->broken, PyExc_MemoryError, "what an engine holds is unknown since memory ran out");
    return 0;
}

/* Tell whether a batch shows more groups than one: core.engines.kv_events.cache.shows_groups. */
static int shows_groups(const EngineCache *self) {
    int known = self->residents.has_group;
    long long group = self->residents.group;
    for (Py_ssize_t at = 0; at < self->batch.count; at++) {
        const EngineEvent *event = self->batch.events + at;
        if (event->what != ENGINE_STORED) {
            continue;
        }
        if (!event->full || (event->tokens && known && event->group != group)) {
            return 1;
        }
        if (event->tokens) {
            known = 1;
            group = event->group;
        }
    }
    return 0;
}

static PyObject *cache_take(EngineCache *self, PyObject *payload) {
    Py_buffer view;
    TRY_OR_NULL(check_whole(self));
    TRY_OR_NULL(begin(self));
    PyObject *events = NULL;
    if (PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE) == 0) {
        int read = engine_batch_read(&self->batch, &self->names, view.buf, view.len);
        PyBuffer_Release(&view);
        int left = read == 0 || (read > 0 && shows_groups(self));
        events = left ? Py_NewRef(Py_None) : read > 0 ? fold(self) : NULL;
        engine_batch_trim(&self->batch);
    }
    self->busy = 0;
    return events;
}

static PyObject *cache_hand_over(EngineCache *self, PyObject *Py_UNUSED(nothing)) {
    TRY_OR_NULL(check_whole(self));
    TRY_OR_NULL(begin(self));
    PyObject *handover = residents_hand_over(&self->residents);
    if (handover != NULL) {
        residents_clear(&self->residents);
        self->residents.counts = (ResidentCounts){0};
        self->residents.size_confirmed = 0;
    }
    self->busy = 0;
    return handover;
}

static PyObject *cache_fold(EngineCache *self, PyObject *batch) {
    TRY_OR_NULL(check_whole(self));
    TRY_OR_NULL(begin(self));
    PyObject *events = engine_batch_take(&self->batch, &self->names, batch) < 0 ? NULL : fold(self);
    engine_batch_trim(&self->batch);
    self->busy = 0;
    return events;
}

/* Forget every block, and return the event that says so. */
static PyObject *clear(EngineCache *self, int complete) {
    TRY_OR_NULL(begin(self));
    residents_clear(&self->residents);
    self->broken = 0;
    self->complete = (char)complete;
    PyObject *events = PyList_New(0);
    if (events != NULL && residents_cleared(&self->types, events) < 0) {
        Py_CLEAR(events);
    }
    self->busy = 0;
    return events;
}

RETURNS(EngineCache, cache_lose, clear(self, 0))

static PyObject *cache_restart(EngineCache *self, PyObject *Py_UNUSED(nothing)) {
    self->residents.size_confirmed = 0;
    return clear(self, 1);
}

/* Append what stores all that is visible; -1 with an error set. */
static int dump_into(EngineCache *self, PyObject *events) {
    Contents *contents = &self->residents.contents;
    int failed = 0;
    for (int at = 0; !failed && at < contents->tier_count; at++) {
        const Tier *tier = contents->tiers + at;
        failed = tier->seen && contents_dump(contents, tier, &self->types, events) < 0;
    }
    contents->run.count = 0;
    return failed ? -1 : 0;
}

static PyObject *cache_dump(EngineCache *self, PyObject *Py_UNUSED(nothing)) {
    TRY_OR_NULL(check_whole(self));
    TRY_OR_NULL(begin(self));
    PyObject *events = PyList_New(0);
    if (events != NULL && dump_into(self, events) < 0) {
        Py_CLEAR(events);
    }
    self->busy = 0;
    return events;
}

static PyObject *cache_save(EngineCache *self, PyObject *Py_UNUSED(nothing)) {
    TRY_OR_NULL(check_whole(self));
    TRY_OR_NULL(begin(self));
    PyObject *saved = residents_save(&self->residents);
    self->busy = 0;
    return saved;
}

/* Open the tiers and hold the blocks of a cache that is empty; as `residents_load`. */
static int load(EngineCache *self, PyObject *tiers, const char *blocks, Py_ssize_t size, PyObject *said) {
    Contents *contents = &self->residents.contents;
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(tiers); at++) {
        long number = PyLong_AsLong(PyTuple_GET_ITEM(tiers, at));
        TRY_IF(number == -1, no_error());
        NEED(contents_tier(contents, (int)number, &self->types, said));
    }
    int loaded = residents_load(&self->residents, (const uint8_t *)blocks, size);
    long long bound = contents->max_hidden;
    /* Children may come before their parents: nothing is forgotten before all are there. */
    contents->max_hidden = LLONG_MAX;
    if (loaded > 0 && contents_held(contents, &self->types, said) < 0) {
        loaded = -1;
    }
    contents->max_hidden = bound;
    return loaded;
}

static PyObject *cache_add(EngineCache *self, PyObject *blocks) {
    Py_buffer view;
    TRY_OR_NULL(check_whole(self));
    TRY_OR_NULL(PyObject_GetBuffer(blocks, &view, PyBUF_SIMPLE));
    if (begin(self) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    PyObject *events = PyList_New(0);
    int loaded = events == NULL ? -1 : residents_load(&self->residents, view.buf, view.len);
    PyBuffer_Release(&view);
    if (loaded > 0 && contents_held(&self->residents.contents, &self->types, events) < 0) {
        loaded = -1;
    }
    self->busy = 0;
    if (loaded > 0) {
        return events;
    }
    Py_XDECREF(events);
    if (loaded < 0) {
        break_off(self);
        return NULL;
    }
    residents_clear(&self->residents);
    self->complete = 0;
    Py_RETURN_NONE;
}

static PyObject *cache_references(EngineCache *self, PyObject *number) {
    uint64_t hash = PyLong_AsUnsignedLongLong(number);
    RETURN_IF(hash == UINT64_MAX && PyErr_Occurred(), NULL);
    uint32_t block = keyed_find(&self->residents.blocks, hash);
    return block == NO_RECORD ? Py_NewRef(Py_None)
                              : PyLong_FromUnsignedLong(keyed_at(&self->residents.blocks, block)->two);
}

static PyObject *cache_load(EngineCache *self, ARGUMENTS) {
    long long group, size;
    PyObject *tiers, *blocks;
    TRY_OR_NULL(READ_PLACED("load", "LLTS", "group block_size tiers blocks", &group, &size, &tiers,
                            &blocks));
    TRY_OR_NULL(begin(self));
    Residents *residents = &self->residents;
    residents_clear(residents);
    self->broken = 0;
    PyObject *said = PyList_New(0), *events = NULL;
    int loaded = said == NULL ? -1 : load(self, tiers, PyBytes_AS_STRING(blocks), PyBytes_GET_SIZE(blocks), said);
    Py_XDECREF(said);
    if (loaded > 0) {
        residents->has_group = group >= 0;
        residents->group = group >= 0 ? group : 0;
        residents->block_size = size ? size : residents->block_size;
        residents->size_confirmed = size > 0;
        self->complete = 1;
        events = PyList_New(0);
        if (events == NULL || residents_cleared(&self->types, events) < 0 || dump_into(self, events) < 0) {
            Py_CLEAR(events);
        }
    } else {
        residents_clear(residents);
        self->complete = 0;
    }
    self->busy = 0;
    return loaded ? events : Py_NewRef(Py_None);
}

static PyObject *closures_of(const Contents *contents, long long *visible) {
    PyObject *closures = PyList_New(0);
    *visible = 0;
    for (int at = 0; closures != NULL && at < contents->tier_count; at++) {
        const Tier *tier = contents->tiers + at;
        if (!tier->seen) {
            continue;
        }
        long long seen = tier->held - tier->hidden_count;
        *visible = seen > *visible ? seen : *visible;
        PyObject *closure = Py_BuildValue("LLL", tier->held, tier->hidden_count, tier->forgotten);
        append_made(&closures, closure);
    }
    return closures;
}

static PyObject *cache_statistics(EngineCache *self, PyObject *Py_UNUSED(nothing)) {
    const ResidentCounts *counts = &self->residents.counts;
    long long visible;
    PyObject *closures = closures_of(&self->residents.contents, &visible);
    NEED_OR_NULL(closures);
    return Py_BuildValue("LLL(LLLLLLLL)N", self->unknown_fields, self->unknown_tags, visible,
                         self->residents.count, counts->orphans, counts->partial_blocks,
                         counts->ignored_groups, counts->placeholders, counts->unknown_removals,
                         counts->mismatched_blocks, counts->crowded, closures);
}

static PyObject *cache_block_size(EngineCache *self, void *Py_UNUSED(nothing)) {
    long long size = self->residents.block_size;
    return PyLong_FromLongLong(size < 0 ? 0 : size);
}

static PyObject *cache_group(EngineCache *self, void *Py_UNUSED(nothing)) {
    const Residents *residents = &self->residents;
    return residents->has_group ? PyLong_FromLongLong(residents->group) : Py_NewRef(Py_None);
}

GETTERS(getters,
    {"group", (getter)cache_group, NULL, "The number of the group that is followed, None for none.", NULL},
    {"block_size", (getter)cache_block_size, NULL, "The engine's block size in tokens; 0: unknown.", NULL})

MEMBERS(members, FIELDS(EngineCache, T_BOOL, 0, complete))

METHODS(methods,
    METHOD_O("take", cache_take),
    METHOD_O("fold", cache_fold),
    METHOD_NOARGS("hand_over", cache_hand_over),
    METHOD_NOARGS("lose", cache_lose),
    METHOD_NOARGS("restart", cache_restart),
    METHOD_NOARGS("dump", cache_dump),
    METHOD_NOARGS("save", cache_save),
    METHOD_FASTCALL("load", cache_load),
    METHOD_O("add", cache_add),
    METHOD_O("references", cache_references),
    METHOD_NOARGS("statistics", cache_statistics))

PyTypeObject engine_cache_type = {
    GC_TYPE("EngineCache", EngineCache, cache),
    .tp_members = members, .tp_getset = getters, .tp_methods = methods,
};
