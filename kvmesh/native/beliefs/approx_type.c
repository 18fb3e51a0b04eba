/* Approx: what Python sees of approx.c. */
#include "base/arrays.h"
#include "base/names.h"
#include "base/shell.h"
#include "beliefs/approx.h"
#include "index/prompt.h"
#include "index/view.h"

#define EXPECTS "hashes are a sequence of u64s, or have `upto` and `blocks`, not %.100s"

static PyObject *approx_new(NEW_ARGUMENTS) {
    double ttl_s, longest_tick_s;
    long long max_entries, prune_to, keeps;
    PyObject *statistics, *limits, *worker_blocks;
    if (READ_NEW("Approx", "OdTdL", "statistics ttl_s limits longest_tick_s keeps", &statistics,
                 &ttl_s, &limits, &longest_tick_s, &keeps) < 0 ||
        !PyArg_ParseTuple(limits, "LLO", &max_entries, &prune_to, &worker_blocks)) {
        return NULL;
    }
    REFUSE_OR_NULL(keeps < KEEP_ALL || keeps >= KEEPS, PyExc_ValueError,
                   "an index keeps blocks in way %d to %d, not %lld", KEEP_ALL, KEEPS - 1, keeps);
    long long limit = worker_blocks == Py_None ? -1 : PyLong_AsLongLong(worker_blocks);
    TRY_OR_NULL(no_error());
    REFUSE_OR_NULL(worker_blocks != Py_None && limit < 0, PyExc_ValueError,
                   "worker_blocks is %lld, it must be at least 0", limit);
    Approx *self = (Approx *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    self->ttl_s = ttl_s;
    self->longest_tick_s = longest_tick_s;
    self->max_entries = max_entries;
    self->prune_to = prune_to;
    self->worker_blocks = limit;
    self->keeps = (char)keeps;
    self->next_end = INFINITY;
    self->statistics = Py_NewRef(statistics);
    self->leases = PyDict_New();
    self->table = self->leases == NULL ? NULL : (Table *)PyObject_CallNoArgs((PyObject *)&table_type);
    return made_or_null(self);
}

static int approx_traverse(Approx *self, visitproc visit, void *arg) {
    VISIT_ALL(self->leases, self->table, self->statistics);
    for (uint32_t slot = 0; slot < self->slot_count; slot++) {
        Py_VISIT(self->names[slot]);
    }
    return 0;
}

/* Break cycles: workers are named by the dict, by slots, and by nothing else. */
static int approx_forget(Approx *self) {
    for (uint32_t slot = 0; slot < self->slot_count; slot++) {
        if (self->states[slot] == SLOT_USED) {
            PyObject *name = self->names[slot];
            self->names[slot] = Py_NewRef(Py_None);
            Py_DECREF(name);
        }
    }
    self->slotted_count = 0;
    if (self->leases != NULL) {
        PyDict_Clear(self->leases);
    }
    return 0;
}

GC_DEALLOC_AFTER(Approx, approx, approx_free(self), leases, table, statistics)

/* Read a sequence of u64s; -1 with TypeError or OverflowError set. Close it even then. */
static int read_sequence(GivenU64s *self, PyObject *hashes) {
    REFUSE(!PyObject_CheckBuffer(hashes) && !PySequence_Check(hashes), PyExc_TypeError, EXPECTS,
           Py_TYPE(hashes)->tp_name);
    return u64s_read(self, hashes);
}

/* Read the hashes of all blocks of a prompt. As above. */
static int read_prompt(GivenU64s *self, PyObject *hashes) {
    if (PyObject_CheckBuffer(hashes) || PySequence_Check(hashes)) {
        return read_sequence(self, hashes);
    }
    PyObject *count = PyObject_GetAttr(hashes, interned.blocks);
    PyObject *known = count == NULL ? NULL : PyObject_CallMethodOneArg(hashes, interned.upto, count);
    Py_XDECREF(count);
    if (known == NULL) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Format(PyExc_TypeError, EXPECTS, Py_TYPE(hashes)->tp_name);
        }
        return -1;
    }
    int failed = read_sequence(self, known) < 0;
    Py_DECREF(known);
    return failed ? -1 : 0;
}

/* Read a time to live that may be None: `ttl_s` stays then; -1 with TypeError set. */
static int read_ttl(PyObject *given, double *ttl_s) {
    return given == Py_None ? 0 : read_double(given, ttl_s);
}

static PyObject *approx_record_call(Approx *self, NAMED_ARGUMENTS) {
    PyObject *worker, *hashes, *ttl = Py_None;
    double now, ttl_s = self->ttl_s, keep_s = 0.0;
    TRY_OR_NULL(READ("record", "OOd|Od", "worker hashes now ttl_s keep_s", &worker, &hashes, &now,
                     &ttl, &keep_s));
    TRY_OR_NULL(read_ttl(ttl, &ttl_s));
    GivenU64s given = {.count = 0};
    int failed = read_prompt(&given, hashes) < 0 ||
                 approx_record(self, worker, given.at, given.count, now, ttl_s, keep_s) < 0;
    u64s_close(&given);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *approx_record_graded_call(Approx *self, NAMED_ARGUMENTS) {
    PyObject *worker, *graded, *ttl = Py_None;
    double now, ttl_s = self->ttl_s;
    long long blocks;
    TRY_OR_NULL(READ("record_graded", "OONd|O", "worker graded blocks now ttl_s", &worker, &graded,
                     &blocks, &now, &ttl));
    TRY_OR_NULL(read_ttl(ttl, &ttl_s));
    GivenU64s given = {.count = 0};
    int failed = read_sequence(&given, graded) < 0 ||
                 approx_record_graded(self, worker, given.at, given.count, blocks, now, ttl_s) < 0;
    u64s_close(&given);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *approx_expire_call(Approx *self, NAMED_ARGUMENTS) {
    PyObject *most = Py_None;
    double now;
    long long budget = 0;
    if (READ("expire", "d|O", "now budget", &now, &most) < 0 ||
        (most != Py_None && read_amount(most, &budget) < 0)) {
        return NULL;
    }
    int done = approx_expire(self, now, most == Py_None ? -1 : budget < 0 ? 0 : budget);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *approx_revoke_call(Approx *self, ARGUMENTS) {
    PyObject *worker, *hashes;
    Py_buffer view;
    TRY_OR_NULL(READ_PLACED("revoke", "OO", "worker hashes", &worker, &hashes));
    TRY_OR_NULL(PyObject_GetBuffer(hashes, &view, PyBUF_SIMPLE));
    /* Packed blocks may begin anywhere; what is behind the last whole one is ignored. */
    Py_ssize_t count = view.len / BLOCK_BYTES;
    int failed = 0;
    if ((uintptr_t)view.buf % sizeof(uint64_t) == 0) {
        failed = approx_revoke(self, worker, view.buf, count) < 0;
    } else {
        uint64_t *copy = PyMem_Malloc((size_t)(count ? count : 1) * sizeof *copy);
        if (copy == NULL) {
            PyErr_NoMemory();
            failed = 1;
        } else {
            memcpy(copy, view.buf, (size_t)count * sizeof *copy);
            failed = approx_revoke(self, worker, copy, count) < 0;
            PyMem_Free(copy);
        }
    }
    PyBuffer_Release(&view);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *approx_remove_call(Approx *self, PyObject *worker) {
    return approx_remove(self, worker) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *approx_sweep_call(Approx *self, PyObject *object) {
    long long budget;
    TRY_OR_NULL(read_amount(object, &budget));
    int done = approx_sweep(self, budget);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *approx_bound_call(Approx *self, ARGUMENTS) {
    PyObject *worker;
    long long slots, blocks;
    TRY_OR_NULL(READ_PLACED("bound", "ONN", "worker slots blocks", &worker, &slots, &blocks));
    return none_or_null(approx_bound(self, worker, slots, blocks));
}

static PyObject *approx_keeps_call(Approx *self, PyObject *worker) {
    long long slots, blocks;
    TRY_OR_NULL(approx_keeps(self, worker, &slots, &blocks));
    return Py_BuildValue("LL", slots, blocks);
}

RETURNS(Approx, approx_workers, PyDict_Keys(self->leases))

static PyObject *approx_blocks_call(Approx *self, PyObject *worker) {
    long long blocks = approx_blocks(self, worker);
    return blocks < 0 ? NULL : PyLong_FromLongLong(blocks);
}

static PyObject *approx_sizes(Approx *self, PyObject *workers) {
    PyObject *sizes = PySequence_List(workers);
    for (Py_ssize_t i = 0; sizes != NULL && i < PyList_GET_SIZE(sizes); i++) {
        PyObject *worker = Py_NewRef(PyList_GET_ITEM(sizes, i));
        PyObject *size = approx_blocks_call(self, worker);
        Py_DECREF(worker);
        if (size == NULL || PyList_SetItem(sizes, i, size) < 0) {
            Py_CLEAR(sizes);
        }
    }
    return sizes;
}

/* Some of a long prompt's hashes, asked for as far as they are needed. */
typedef struct {
    Prompt prompt; /* first */
    AskedPrompt whole;
    int keeps;
    Py_ssize_t blocks;
    Blocks kept;
} ThinnedPrompt;

static int ask_thinned(Prompt *prompt, Py_ssize_t wanted) {
    ThinnedPrompt *self = (ThinnedPrompt *)prompt;
    Prompt *whole = &self->whole.prompt;
    if (whole->more(whole, approx_depth(self->keeps, wanted)) < 0 ||
        approx_keep(self->keeps, whole->known, whole->count, self->blocks, &self->kept) < 0) {
        return -1;
    }
    prompt->known = self->kept.items;
    prompt->count = self->kept.count;
    return 0;
}

/* Find the drops of a prompt with `live` as it was at first; -1 with an error set. */
static int search(Approx *self, PyObject *hashes, const uint64_t *live, Drops *found) {
    uint32_t words = self->live_words;
    uint64_t changes = self->changes;
    AskedPrompt asked;
    Py_ssize_t blocks = 0;
    int keeps = self->keeps, failed;
    if (keeps != KEEP_ALL) {
        TRY(read_attribute(hashes, interned.blocks, 'n', &blocks));
    }
    if (!approx_keeps_all(keeps, blocks)) {
        ThinnedPrompt prompt = {
            .prompt = {NULL, 0, ask_thinned}, .keeps = keeps, .blocks = blocks};
        prompt_open(&prompt.whole, hashes);
        failed = table_search_prompt(self->table, NULL, &prompt.prompt, live, words, found) < 0;
        prompt_close(&prompt.whole);
        PyMem_RawFree(prompt.kept.items);
        for (Py_ssize_t i = 0; !failed && i < found->count; i++) {
            Py_ssize_t depth = approx_depth(keeps, found->drops[i].depth);
            found->drops[i].depth = depth < blocks ? depth : blocks;
        }
    } else {
        prompt_open(&asked, hashes);
        failed = table_search_prompt(self->table, NULL, &asked.prompt, live, words, found) < 0;
        prompt_close(&asked);
    }
    if (!failed && self->changes != changes) {
        PyErr_SetString(PyExc_RuntimeError, "a worker came or went while a prompt was searched");
        failed = 1;
    }
    return failed ? -1 : 0;
}

static PyObject *approx_find_groups(Approx *self, PyObject *hashes) {
    size_t size = ((size_t)self->live_words + 1) * sizeof(uint64_t);
    uint64_t *live = PyMem_Malloc(size);
    NEED_MEMORY_OR_NULL(live);
    if (self->live_words) {
        memcpy(live, self->live, size - sizeof *live);
    }
    /* The prompt may search, too, while it is asked for hashes. */
    Drops found = self->found;
    self->found = (Drops){0};
    PyObject *groups = search(self, hashes, live, &found) < 0 ? NULL : drops_groups(&found, &self->names);
    drops_free(&self->found);
    self->found = found;
    PyMem_Free(live);
    return groups;
}

static PyObject *approx_find_matches(Approx *self, PyObject *hashes) {
    PyObject *groups = approx_find_groups(self, hashes);
    PyObject *matches = groups == NULL ? NULL : PyDict_New();
    /* The deepest come last: they count. */
    for (Py_ssize_t i = matches == NULL ? 0 : PyList_GET_SIZE(groups); i-- > 0;) {
        PyObject *group = PyList_GET_ITEM(groups, i), *workers = PyTuple_GET_ITEM(group, 1);
        int failed = 0;
        for (Py_ssize_t one = 0; !failed && one < PyTuple_GET_SIZE(workers); one++) {
            PyObject *worker = PyTuple_GET_ITEM(workers, one);
            failed = PyDict_SetItem(matches, worker, PyTuple_GET_ITEM(group, 0)) < 0;
        }
        if (failed) {
            Py_CLEAR(matches);
            break;
        }
    }
    Py_XDECREF(groups);
    return matches;
}

static PyObject *approx_statistics(Approx *self, PyObject *Py_UNUSED(nothing)) {
    return PyObject_CallFunction(self->statistics, "nKLLLLL", PyDict_GET_SIZE(self->leases),
                                 (unsigned long long)self->table->blocks, self->entries,
                                 self->expired, self->pruned, self->displaced, self->revoked);
}

MEMBERS(members,
    FIELDS(Approx, T_DOUBLE, 0, ttl_s)
    FIELDS(Approx, T_DOUBLE, READONLY, next_end)
    FIELDS(Approx, T_ULONGLONG, READONLY, changes))

METHODS(methods,
    METHOD_KEYWORDS("record", approx_record_call),
    METHOD_KEYWORDS("record_graded", approx_record_graded_call),
    METHOD_KEYWORDS("expire", approx_expire_call),
    METHOD_FASTCALL("revoke", approx_revoke_call),
    METHOD_FASTCALL("bound", approx_bound_call),
    METHOD_O("keeps", approx_keeps_call),
    METHOD_O("remove_worker", approx_remove_call),
    METHOD_O("sweep", approx_sweep_call),
    METHOD_NOARGS("workers", approx_workers),
    METHOD_O("blocks", approx_blocks_call),
    METHOD_O("sizes", approx_sizes),
    METHOD_O("find_matches", approx_find_matches),
    METHOD_O("find_groups", approx_find_groups),
    METHOD_NOARGS("statistics", approx_statistics))

PyTypeObject approx_type = {
    GC_TYPE("Approx", Approx, approx),
    .tp_clear = (inquiry)approx_forget,
    .tp_members = members, .tp_methods = methods,
};
