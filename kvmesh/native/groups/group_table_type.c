/* GroupTable: what core.engines.kv_events.compiled_groups calls, over group_table.h. Nothing of it runs while
 * it runs: a call from within one of its own is refused. */
#include "base/shell.h"
#include "groups/group_table.h"
#include "groups/groups.h"

#include <limits.h>

typedef struct {
    PyObject_HEAD
    EventTypes types;
    GroupTable table;
    Blocks hashes, ends, path; /* scratch */
    uint8_t *left_out;
    Py_ssize_t left_room;
    char busy;
    char broken; /* memory ran out in the middle of a change */
} GroupTableObject;

static PyObject *table_new(NEW_ARGUMENTS) {
    PyObject *stored, *removed;
    long long blocks, references, hidden, run;
    TRY_OR_NULL(READ_NEW("GroupTable", "OOLLLL",
                         "stored removed max_blocks max_references max_hidden max_run", &stored,
                         &removed, &blocks, &references, &hidden, &run));
    REFUSE_OR_NULL(hidden < 0 || run < 1 || references < 1 || references > COUNT_MASK,
                   PyExc_ValueError, "bounds of a GroupTable are out of range");
    GroupTableObject *self = (GroupTableObject *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    group_table_init(&self->table);
    self->table.most_blocks = blocks;
    self->table.most_references = (uint32_t)references;
    self->table.align = 1;
    self->table.contents.max_hidden = hidden;
    self->table.contents.max_run = (Py_ssize_t)run;
    self->types = (EventTypes){Py_NewRef(stored), Py_NewRef(removed), NULL};
    return (PyObject *)self;
}

static int table_traverse(GroupTableObject *self, visitproc visit, void *arg) {
    VISIT_ALL(self->types.stored, self->types.removed);
    return 0;
}

/* Types stay while anything may still call: they lead back here only by a crafted one. */
static void table_dealloc(GroupTableObject *self) {
    PyObject_GC_UnTrack(self);
    group_table_free(&self->table);
    RAW_FREE_ALL(self->hashes.items, self->ends.items, self->path.items, self->left_out);
    CLEAR_ALL(self->types.stored, self->types.removed);
    Py_TYPE(self)->tp_free(self);
}

static int begin(GroupTableObject *self) {
    REFUSE(self->busy, PyExc_RuntimeError, "a table of groups is changed while it changes");
    REFUSE(self->broken, PyExc_MemoryError, "what an engine holds is unknown since memory ran out");
    self->busy = 1;
    return 0;
}

/* End a call; one that failed in the middle of a change leaves nothing to rely on. */
static PyObject *end(GroupTableObject *self, PyObject *answer, int changes) {
    self->busy = 0;
    if (answer == NULL && changes) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        group_table_clear(&self->table);
        self->broken = 1;
        PyErr_Restore(type, value, traceback);
    }
    return answer;
}

static CacheGroup *group_at(const GroupTableObject *self, Py_ssize_t slot) {
    REFUSE_OR_NULL(slot < 0 || slot >= self->table.group_count, PyExc_IndexError,
                   "there is no group %zd", slot);
    return self->table.groups[slot];
}

/* Read a sequence of u64s, None where `left_out` says so; -1 with an error set. No code of others runs but on
 * the way to the sequence: numbers are ints. */
static int read_numbers(GroupTableObject *self, PyObject *object, Blocks *to, int may_be_none) {
    PyObject *items = PySequence_Fast(object, "hashes are a sequence");
    to->count = 0;
    if (items == NULL || blocks_reserve(to, PySequence_Fast_GET_SIZE(items)) < 0) {
        Py_XDECREF(items);
        return -1;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(items);
    if (may_be_none && count > self->left_room) {
        if (RAW_RESIZE(self->left_out, count) < 0) {
            Py_DECREF(items);
            return -1;
        }
        self->left_room = count;
    }
    int failed = 0;
    for (Py_ssize_t at = 0; !failed && at < count; at++) {
        PyObject *item = PySequence_Fast_GET_ITEM(items, at);
        int none = may_be_none && item == Py_None;
        if (!none && !PyLong_CheckExact(item)) {
            PyErr_Format(PyExc_TypeError, "a hash is an int, not %.100s", Py_TYPE(item)->tp_name);
        }
        to->items[at] = none || PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(item);
        failed = PyErr_Occurred() != NULL;
        if (may_be_none) {
            self->left_out[at] = (uint8_t)none;
        }
    }
    to->count = count;
    Py_DECREF(items);
    return failed ? -1 : 0;
}

static PyObject *table_find(GroupTableObject *self, PyObject *hash) {
    uint64_t number = PyLong_AsUnsignedLongLong(hash);
    RETURN_IF(number == UINT64_MAX && PyErr_Occurred(), NULL);
    const GroupTable *table = &self->table;
    uint32_t node = group_find(table, number);
    if (node == NO_RECORD) {
        Py_RETURN_NONE;
    }
    uint64_t root = column_get(&table->roots, node) | (uint64_t)column_get(&table->high_roots, node) << 32;
    return Py_BuildValue("KKk", (unsigned long long)group_key(table, node), (unsigned long long)root,
                         (unsigned long)column_get(&table->depths, node));
}

static PyObject *table_store(GroupTableObject *self, ARGUMENTS) {
    Py_ssize_t slot;
    long long tier;
    uint64_t span, times, root;
    PyObject *hashes, *ends, *before, *path;
    TRY_OR_NULL(READ_PLACED("store", "nLKKOOOKO",
                            "slot tier span times hashes ends before root path", &slot, &tier,
                            &span, &times, &hashes, &ends, &before, &root, &path));
    TRY_OR_NULL(begin(self));
    GroupStore store = {.tier = (int)tier, .root = root, .has_before = before != Py_None};
    store.group = group_at(self, slot);
    store.span = span > UINT32_MAX ? UINT32_MAX : (uint32_t)span;
    store.times = times > UINT32_MAX ? UINT32_MAX : (uint32_t)times;
    if (store.has_before && PyLong_CheckExact(before)) {
        store.before = PyLong_AsUnsignedLongLong(before);
    }
    if (store.group == NULL || PyErr_Occurred() || read_numbers(self, hashes, &self->hashes, 0) < 0 ||
        read_numbers(self, ends, &self->ends, 1) < 0 || read_numbers(self, path, &self->path, 0) < 0) {
        return end(self, NULL, 0);
    }
    if (self->hashes.count != self->ends.count) {
        PyErr_Format(PyExc_ValueError, "%zd hashes have %zd ends", self->hashes.count, self->ends.count);
        return end(self, NULL, 0);
    }
    store.hashes = self->hashes.items;
    store.ends = self->ends.items;
    store.left_out = self->left_out;
    store.count = self->hashes.count;
    store.path = self->path.items;
    store.path_count = self->path.count;
    long long crowded = group_store(&self->table, &store);
    return end(self, crowded < 0 ? NULL : PyLong_FromLongLong(crowded), 1);
}

static PyObject *table_remove(GroupTableObject *self, ARGUMENTS) {
    Py_ssize_t slot;
    long long tier;
    PyObject *hashes;
    TRY_OR_NULL(READ_PLACED("remove", "nLO", "slot tier hashes", &slot, &tier, &hashes));
    TRY_OR_NULL(begin(self));
    CacheGroup *group = group_at(self, slot);
    if (group == NULL || read_numbers(self, hashes, &self->hashes, 0) < 0) {
        return end(self, NULL, 0);
    }
    long long unknown = group_remove(&self->table, group, (int)tier, self->hashes.items, self->hashes.count);
    return end(self, unknown < 0 ? NULL : PyLong_FromLongLong(unknown), 1);
}

/* Return the list, or NULL in its place if the call failed. */
static PyObject *checked(PyObject *list, int failed) {
    if (failed) {
        Py_CLEAR(list);
    }
    return list;
}

static PyObject *table_open(GroupTableObject *self, PyObject *tier) {
    long number = PyLong_AsLong(tier);
    if ((number == -1 && PyErr_Occurred()) || begin(self) < 0) {
        return NULL;
    }
    if (number < 0 || number > 255 ||
        (group_tier(&self->table, (int)number) < 0 && self->table.contents.tier_count == MOST_TIERS)) {
        PyErr_Format(PyExc_ValueError, "an engine has at most %d tiers, from 0 to 255", MOST_TIERS);
        return end(self, NULL, 0);
    }
    PyObject *events = PyList_New(0);
    int failed = events == NULL || group_open(&self->table, (int)number, &self->types, events) < 0;
    return end(self, checked(events, failed), 1);
}

static PyObject *table_settle(GroupTableObject *self, PyObject *Py_UNUSED(nothing)) {
    TRY_OR_NULL(begin(self));
    PyObject *events = PyList_New(0);
    int failed = events == NULL || group_settle(&self->table, &self->types, events) < 0;
    return end(self, checked(events, failed), 1);
}

static PyObject *table_take_ends(GroupTableObject *self, PyObject *Py_UNUSED(nothing)) {
    TRY_OR_NULL(begin(self));
    PyObject *gone = PyList_New(0), *fresh = PyList_New(0), *both = NULL;
    if (gone != NULL && fresh != NULL && group_take_ends(&self->table, &self->types, gone, fresh) == 0) {
        both = PyTuple_Pack(2, gone, fresh);
    }
    XDECREF_ALL(gone, fresh);
    return end(self, both, 1);
}

static PyObject *table_dump(GroupTableObject *self, PyObject *Py_UNUSED(nothing)) {
    TRY_OR_NULL(begin(self));
    PyObject *events = PyList_New(0);
    int failed = events == NULL || group_dump(&self->table, &self->types, events) < 0;
    self->table.contents.run.count = 0;
    return end(self, checked(events, failed), 0);
}

/* Take what a rule says of one group: (role, step, need). */
static int read_group(GroupTable *table, int slot, PyObject *described) {
    int role;
    unsigned long step, need;
    REFUSE(!PyTuple_Check(described), PyExc_TypeError, "a group is a tuple, not %.100s",
           Py_TYPE(described)->tp_name);
    if (!PyArg_ParseTuple(described, "ikk:group", &role, &step, &need)) {
        return -1;
    }
    REFUSE(role < ROLE_FULL || role > ROLE_STATE || step < 1 || step > INT_MAX || need > INT_MAX,
           PyExc_ValueError, "a group has a role, and at least one unit a block");
    if (slot == table->group_count) {
        CacheGroup *made = PyMem_RawCalloc(1, sizeof *made);
        NEED_MEMORY(made);
        keyed_init(&made->held);
        table->groups[table->group_count++] = made;
    }
    CacheGroup *group = table->groups[slot];
    group->role = role;
    group->step = (uint32_t)step;
    group->need = (uint32_t)need;
    return 0;
}

static PyObject *table_settle_rule(GroupTableObject *self, ARGUMENTS) {
    PyObject *groups;
    uint64_t align, drop;
    TRY_OR_NULL(READ_PLACED("settle_rule", "TKK", "groups align drop", &groups, &align, &drop));
    TRY_OR_NULL(begin(self));
    GroupTable *table = &self->table;
    Py_ssize_t count = PyTuple_GET_SIZE(groups);
    if (count < table->group_count || count > MOST_CACHE_GROUPS || align < 1 || align > INT_MAX ||
        drop > INT_MAX) {
        PyErr_SetString(PyExc_ValueError, "groups are never less, and up to 64; hits end at units");
        return end(self, NULL, 0);
    }
    int failed = 0;
    table->full_count = 0;
    for (Py_ssize_t slot = 0; !failed && slot < count; slot++) {
        failed = read_group(table, (int)slot, PyTuple_GET_ITEM(groups, slot)) < 0;
        table->full_count += !failed && table->groups[slot]->role == ROLE_FULL;
    }
    table->align = (uint32_t)align;
    table->drop = (uint32_t)drop;
    failed = failed || group_settle_rule(table, &self->types) < 0;
    return end(self, failed ? NULL : Py_NewRef(Py_None), 1);
}

static PyObject *table_clear(GroupTableObject *self, PyObject *Py_UNUSED(nothing)) {
    self->broken = 0;
    TRY_OR_NULL(begin(self));
    group_table_clear(&self->table);
    return end(self, Py_NewRef(Py_None), 0);
}

static PyObject *table_counts(GroupTableObject *self, PyObject *Py_UNUSED(nothing)) {
    const GroupTable *table = &self->table;
    PyObject *groups = PyList_New(0), *tiers = PyList_New(0);
    int failed = groups == NULL || tiers == NULL;
    for (int slot = 0; !failed && slot < table->group_count; slot++) {
        failed = list_add(groups, PyLong_FromLongLong(table->groups[slot]->count)) < 0;
    }
    for (int at = 0; !failed && at < table->contents.tier_count; at++) {
        const Tier *tier = table->contents.tiers + at;
        failed = list_add(tiers, Py_BuildValue("LLL", tier->held, tier->hidden_count,
                                               tier->forgotten)) < 0;
    }
    if (failed) {
        XDECREF_ALL(groups, tiers);
        return NULL;
    }
    return Py_BuildValue("LLNN", table->blocks, table->boundaries, groups, tiers);
}

METHODS(methods,
    METHOD_O("find", table_find),
    METHOD_FASTCALL("store", table_store),
    METHOD_FASTCALL("remove", table_remove),
    METHOD_O("open", table_open),
    METHOD_NOARGS("settle", table_settle),
    METHOD_NOARGS("take_ends", table_take_ends),
    METHOD_NOARGS("dump", table_dump),
    METHOD_FASTCALL("settle_rule", table_settle_rule),
    METHOD_NOARGS("clear", table_clear),
    METHOD_NOARGS("counts", table_counts))

PyTypeObject group_table_type = {
    GC_TYPE("GroupTable", GroupTableObject, table),
    .tp_methods = methods,
};
