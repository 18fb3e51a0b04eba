/* Frozen: a table as it was at one moment, read shard by shard while the table moves on.
 *
 * Freezing is O(shards); a segment that is about to change before its shard was read is copied, some
 * 500 blocks. A copy's entries refer to the table's sets, so that these stay.
 */
#include "table.h"

#define NARROW_SETS 65536
#define SKIPPED UINT32_MAX
#define UNKNOWN (UINT32_MAX - 1)

static void drop_kept(Frozen *self, uint32_t number) {
    Kept *kept = self->kept + number;
    for (uint32_t i = 0; i < kept->count; i++) {
        sets_release(&self->table->sets, kept->entries[i].set);
    }
    PyMem_Free(kept->entries);
    *kept = (Kept){NULL, 0, 0};
}

/* Copy the entries of a segment, without gaps, to where there is room for all. */
static uint32_t copy_entries(const Segment *segment, Entry *entries) {
    uint32_t used = 0; /* free ones are overwritten: a jump would be guessed wrong too often */
    for (uint32_t at = 0; at < segment->room; at++) {
        entries[used] = segment->entries[at];
        used += segment->entries[at].set != 0;
    }
    return used;
}

/* Make room for a segment's entries and one more; -1 with MemoryError set. */
static int reserve(Kept *kept, const Segment *segment) {
    uint64_t wanted = (uint64_t)kept->count + segment->used + 1;
    if (wanted > kept->room) {
        uint64_t room = wanted + kept->room / 2;
        Entry *entries = PyMem_Realloc(kept->entries, room * sizeof *entries);
        if (entries == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        kept->entries = entries;
        kept->room = (uint32_t)room;
    }
    return 0;
}

static int needs(const Frozen *view, uint32_t number, const Segment *segment) {
    return view->pending[number] && segment->stamp < view->number;
}

/* Let all open views copy a segment that is about to change; -1 with MemoryError set. */
static int keep(Table *self, uint32_t number, Segment *segment) {
    for (Frozen *view = self->frozen; view != NULL; view = view->next) {
        if (needs(view, number, segment) && reserve(view->kept + number, segment) < 0) {
            return -1;
        }
    }
    for (Frozen *view = self->frozen; view != NULL; view = view->next) {
        if (needs(view, number, segment)) {
            Kept *kept = view->kept + number;
            Entry *copied = kept->entries + kept->count;
            uint32_t used = copy_entries(segment, copied);
            for (uint32_t i = 0; i < used; i++) {
                sets_refer(&self->sets, copied[i].set);
            }
            kept->count += used;
        }
    }
    segment->stamp = self->freezes;
    return 0;
}

int table_keep(Table *self, uint32_t number) {
    Shard *shard = self->shards + number;
    Segment *segment;
    if (self->frozen == NULL) {
        return 0;
    }
    shard->stamp = self->freezes;
    for (uint64_t walk = 0; (segment = shard_walk(shard, &walk)) != NULL;) {
        if (segment->stamp != self->freezes && keep(self, number, segment) < 0) {
            return -1;
        }
    }
    return 0;
}

int table_keep_run(Table *self, const uint8_t *run, Py_ssize_t count) {
    for (Py_ssize_t i = 0; self->frozen != NULL && i < count; i++) {
        uint64_t block = run_block(run, i);
        Shard *shard = self->shards + (block & 255);
        shard->stamp = self->freezes;
        if (shard->homes != NULL) {
            Segment *segment = shard->segments[shard_place(shard, block_hash(block))];
            if (segment->stamp != self->freezes &&
                keep(self, (uint32_t)(block & 255), segment) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

PyObject *table_freeze(Table *self, PyObject *nothing) {
    (void)nothing;
    Frozen *view = PyObject_New(Frozen, &frozen_type);
    if (view == NULL) {
        return NULL;
    }
    view->table = (Table *)Py_NewRef(self);
    view->open = 1;
    view->next = self->frozen;
    memset(view->pending, 1, sizeof view->pending);
    memset(view->kept, 0, sizeof view->kept);
    view->number = ++self->freezes;
    self->frozen = view;
    return (PyObject *)view;
}

static void close_view(Frozen *self) {
    if (!self->open) {
        return;
    }
    Frozen **link = &self->table->frozen;
    while (*link != self) {
        link = &(*link)->next;
    }
    *link = self->next;
    self->open = 0;
}

static PyObject *frozen_close(Frozen *self, PyObject *nothing) {
    (void)nothing;
    close_view(self);
    Py_RETURN_NONE;
}

static void frozen_dealloc(Frozen *self) {
    close_view(self);
    for (uint32_t number = 0; number < SHARDS; number++) {
        drop_kept(self, number);
    }
    self->table->changes++;
    Py_DECREF(self->table);
    PyObject_Free(self);
}

/* The entries of a shard, in the order they came. */
typedef struct {
    Entry *entries;
    uint32_t count;
} Reading;

/* Return what a view reads of a shard; `entries` is NULL with an error set. Free them. */
static Reading read_shard(Frozen *self, PyObject *object, uint32_t *number) {
    Reading reading = {NULL, 0};
    long wanted = PyLong_AsLong(object);
    if (wanted < 0 || wanted >= SHARDS) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "there is no shard %ld", wanted);
        }
        return reading;
    }
    *number = (uint32_t)wanted;
    const Shard *shard = self->table->shards + wanted;
    const Kept *kept = self->kept + wanted;
    Segment *segment;
    reading.entries =
        PyMem_Malloc(((size_t)kept->count + shard->used + 1) * sizeof *reading.entries);
    if (reading.entries == NULL) {
        PyErr_NoMemory();
        return reading;
    }
    if (kept->count) {
        memcpy(reading.entries, kept->entries, kept->count * sizeof *kept->entries);
    }
    reading.count = kept->count;
    for (uint64_t walk = 0; (segment = shard_walk(shard, &walk)) != NULL;) {
        if (segment->stamp < self->number) {
            reading.count += copy_entries(segment, reading.entries + reading.count);
        }
    }
    reading.entries = entries_sorted(reading.entries, reading.count);
    return reading;
}

static void done_with(Frozen *self, uint32_t number) {
    self->pending[number] = 0;
    if (self->kept[number].entries != NULL) {
        self->table->changes++;
        drop_kept(self, number);
    }
}

/* Put key -> mask of a shard into a new dict; -1 with MemoryError set. */
static int fill(PyObject *held, Table *table, const Reading *reading) {
    for (uint32_t i = 0; i < reading->count; i++) {
        const Entry *entry = reading->entries + i;
        PyObject *mask = sets_mask(&table->sets, entry->set);
        PyObject *key = mask == NULL ? NULL : PyLong_FromUnsignedLongLong(entry->key >> 8);
        int failed = key == NULL || PyDict_SetItem(held, key, mask) < 0;
        Py_XDECREF(key);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

PyDoc_STRVAR(take_doc, "take(number) -> dict[int, int]\n\n"
"Return key -> mask of one shard, once: later it may be as it is now. 0.1 us a block.");

static PyObject *frozen_take(Frozen *self, PyObject *object) {
    uint32_t number;
    PyObject *held = PyDict_New(); /* first: making it may run the garbage collector */
    Reading reading = {NULL, 0};
    if (held != NULL) {
        reading = read_shard(self, object, &number);
    }
    if (reading.entries == NULL || fill(held, self->table, &reading) < 0) {
        Py_CLEAR(held);
    } else {
        done_with(self, number);
    }
    PyMem_Free(reading.entries);
    return held;
}

/* Return the number of a set in the snapshot, a new one when it has none; UNKNOWN with an error. */
static uint32_t number_of(Table *table, uint32_t set, PyObject *live, PyObject *numbers) {
    PyObject *mask = Py_XNewRef(sets_mask(&table->sets, set)), *number = NULL;
    if (mask != NULL && live != Py_None) {
        Py_SETREF(mask, PyNumber_And(mask, live));
    }
    if (mask == NULL) {
        return UNKNOWN;
    }
    uint32_t found = UNKNOWN;
    if (_PyLong_Sign(mask) == 0) {
        found = SKIPPED;
    } else if ((number = Py_XNewRef(PyDict_GetItemWithError(numbers, mask))) == NULL &&
               !PyErr_Occurred()) {
        number = PyLong_FromSsize_t(PyDict_GET_SIZE(numbers));
        if (number != NULL && PyDict_SetItem(numbers, mask, number) < 0) {
            Py_CLEAR(number);
        }
    }
    if (number != NULL) {
        unsigned long value = PyLong_AsUnsignedLong(number);
        if (!PyErr_Occurred() && value < UNKNOWN) {
            found = (uint32_t)value;
        }
        Py_DECREF(number);
    }
    Py_DECREF(mask);
    return found;
}

/* Number the sets of entries into `sets`; return how many entries count, -1: an error. */
static int64_t number_entries(Table *table, const Reading *reading, uint32_t *sets, PyObject *live,
                              PyObject *numbers) {
    int64_t count = 0;
    uint64_t changes = table->changes;
    uint32_t known_count = table->sets.used;
    uint32_t *known = PyMem_Malloc((size_t)known_count * sizeof *known);
    if (known == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(known, 0xFF, (size_t)known_count * sizeof *known);
    for (uint32_t i = 0; i < reading->count; i++) {
        uint32_t set = reading->entries[i].set;
        if (known[set] == UINT32_MAX) {
            uint32_t found = number_of(table, set, live, numbers);
            if (table->changes != changes) { /* keys of `numbers` that compare by running code */
                found = UNKNOWN;
            }
            known[set] = found;
            if (found == UNKNOWN) {
                count = -1;
                break;
            }
            if (known[set] == SKIPPED) { /* looked at again for each block: rare, and small */
                sets[i] = SKIPPED;
                continue;
            }
        }
        sets[i] = known[set];
        count++;
    }
    PyMem_Free(known);
    if (count < 0 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "numbers must map masks to their places");
    }
    return count;
}

static PyObject *columns_of(const Reading *reading, const uint32_t *sets, Py_ssize_t count,
                            int width) {
    PyObject *columns = PyBytes_FromStringAndSize(NULL, count * (KEY_BYTES + width));
    if (columns == NULL) {
        return NULL;
    }
    char *key = PyBytes_AS_STRING(columns), *number = key + count * KEY_BYTES;
    for (uint32_t i = 0; i < reading->count; i++) {
        if (sets[i] != SKIPPED) {
            uint64_t upper = reading->entries[i].key >> 8;
            memcpy(key, &upper, KEY_BYTES);
            memcpy(number, sets + i, (size_t)width);
            key += KEY_BYTES;
            number += width;
        }
    }
    return columns;
}

PyDoc_STRVAR(columns_doc, "columns(number, live, numbers) -> tuple[int, int, bytes]\n\n"
"Return one shard, once, as a snapshot has it: how many blocks, how many bytes the number of a set\n"
"takes, and the columns. `numbers` maps masks to numbers and grows; `live` None: every bit counts.\n"
"20 ns a block.");

static PyObject *frozen_columns(Frozen *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs != 3 || !PyDict_Check(args[2]) || (args[1] != Py_None && !PyLong_Check(args[1]))) {
        return PyErr_Format(PyExc_TypeError, "columns takes a number, a mask or None, and a dict");
    }
    uint32_t number;
    Reading reading = read_shard(self, args[0], &number);
    if (reading.entries == NULL) {
        return NULL;
    }
    PyObject *found = NULL;
    uint32_t *sets = PyMem_Malloc(((size_t)reading.count + 1) * sizeof *sets);
    int64_t count = -1;
    if (sets == NULL) {
        PyErr_NoMemory();
    } else {
        count = number_entries(self->table, &reading, sets, args[1], args[2]);
    }
    if (count >= 0) {
        int width = PyDict_GET_SIZE(args[2]) <= NARROW_SETS ? 2 : 4;
        PyObject *columns = columns_of(&reading, sets, (Py_ssize_t)count, width);
        if (columns != NULL) {
            found = Py_BuildValue("LiN", (long long)count, width, columns);
        }
        done_with(self, number);
    }
    PyMem_Free(sets);
    PyMem_Free(reading.entries);
    return found;
}

static PyMethodDef methods[] = {
    {"take", (PyCFunction)frozen_take, METH_O, take_doc},
    {"columns", (PyCFunction)(void (*)(void))frozen_columns, METH_FASTCALL, columns_doc},
    {"close", (PyCFunction)frozen_close, METH_NOARGS, "close()\n\nCopy no more; safe to call twice."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject frozen_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvmesh._native.Frozen",
    .tp_doc = "A table as it was.",
    .tp_basicsize = sizeof(Frozen),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)frozen_dealloc,
    .tp_methods = methods,
};
