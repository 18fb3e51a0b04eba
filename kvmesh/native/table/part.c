/* One shard of a snapshot, with that of an older table: its rows, their numbers, its columns.
 *
 * `columns` makes them in one go. Whoever makes up blocks of one lowest byte puts a whole table into
 * one shard: `Part` makes the same columns in slices, between which others work. It copies the shard as
 * a view does before a change, sorts, joins, numbers and writes the copy, and lets go of its sets.
 */
#include "base/shell.h"
#include "table/table.h"

#define NARROW_SETS 65536
#define SKIPPED UINT32_MAX
#define UNKNOWN (UINT32_MAX - 1)
#define SLICE 16384U /* blocks: 0.1 to 0.6 ms of any step */

/* Return the number of a mask, given away, in the snapshot, a new one when it has none; UNKNOWN with an
 * error. */
static uint32_t number_of(PyObject *mask, PyObject *live, PyObject *numbers) {
    PyObject *number = NULL;
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

/* One table's part of the shard, and the numbers of its sets, SKIPPED: not known. */
typedef struct {
    Frozen *frozen;
    Reading reading; /* in order, but before they are sorted */
    uint32_t *known;
} Source;

/* What is written of one block. */
typedef struct {
    uint64_t key; /* its 7 upper bytes */
    uint32_t set; /* in the first source, NO_SET for none */
    uint32_t other; /* in the second */
    uint32_t number;
} Row;

/* The columns under way. */
typedef struct {
    Source sources[2];
    int source_count;
    uint32_t shard;
    PyObject *live, *numbers;
    Row *rows;
    uint32_t row_count, numbered;
    uint64_t joined;  /* blocks of both sources that are in rows */
    uint32_t *places; /* of the first source's rows, 1 + their number, by their keys */
    size_t room;
    int64_t count; /* rows that are written */
} Making;

static void close_making(Making *self) {
    for (int one = 0; one < 2; one++) {
        PyMem_Free(self->sources[one].known);
        PyMem_Free(self->sources[one].reading.entries);
    }
    FREE_ALL(self->rows, self->places);
    *self = (Making){.rows = NULL};
}

/* Have room for the numbers of a source's sets: those that its entries name are there already. */
static int open_numbers(Source *self) {
    size_t sets = self->frozen->table->sets.used;
    self->known = PyMem_Malloc(sets * sizeof *self->known);
    NEED_MEMORY(self->known);
    memset(self->known, 0xFF, sets * sizeof *self->known);
    return 0;
}

static PyObject *mask_of(const Source *self, uint32_t set) {
    return set == NO_SET ? NULL : sets_mask(&self->frozen->table->sets, set);
}

static PyObject *mask_of_both(const Source *sources, const Row *row) {
    PyObject *one = mask_of(sources, row->set), *two = NULL;
    if (row->other == NO_SET) {
        return Py_XNewRef(one);
    }
    if (row->set != NO_SET && one == NULL) {
        return NULL;
    }
    two = mask_of(sources + 1, row->other);
    return one == NULL || two == NULL ? Py_XNewRef(two) : PyNumber_Or(one, two);
}

/* Number the sets of so many more rows; 1 at the end, 0 before it, -1: an error. */
static int number_rows(Making *self, uint32_t most) {
    Source *sources = self->sources;
    uint32_t left = self->row_count - self->numbered, end = self->numbered + (left < most ? left : most);
    uint64_t changes[2] = {sources[0].frozen->table->changes,
                           self->source_count > 1 ? sources[1].frozen->table->changes : 0};
    const Row *before = NULL; /* sets are alike all along a run */
    for (; self->numbered < end; self->numbered++) {
        Row *row = self->rows + self->numbered;
        uint32_t *known = row->other == NO_SET ? sources[0].known + row->set
                          : row->set == NO_SET ? sources[1].known + row->other
                                               : NULL;
        if (known != NULL && *known != SKIPPED) {
            row->number = *known;
        } else if (before != NULL && before->set == row->set && before->other == row->other) {
            row->number = before->number;
        } else {
            row->number = number_of(mask_of_both(sources, row), self->live, self->numbers);
            for (int one = 0; one < self->source_count; one++) {
                if (sources[one].frozen->table->changes != changes[one]) {
                    row->number = UNKNOWN; /* keys of `numbers` that compare by running code */
                }
            }
            if (row->number == UNKNOWN) {
                if (!PyErr_Occurred()) {
                    PyErr_SetString(PyExc_ValueError, "numbers must map masks to their places");
                }
                return -1;
            }
            if (known != NULL) {
                *known = row->number;
            }
        }
        before = row;
        self->count += row->number != SKIPPED;
    }
    return self->numbered == self->row_count;
}

/* Have room for the rows of both sources; -1 with MemoryError set. */
static int open_rows(Making *self) {
    const Reading *first = &self->sources[0].reading, *second = &self->sources[1].reading;
    self->room = 2;
    while (second->count && self->room < 2 * (size_t)first->count) {
        self->room *= 2;
    }
    self->rows = PyMem_Malloc(((size_t)first->count + second->count + 1) * sizeof *self->rows);
    self->places = self->rows == NULL ? NULL : PyMem_Calloc(self->room, sizeof *self->places);
    NEED_MEMORY(self->places);
    return 0;
}

/* Return where a key of the first source is among places, or would be. */
static uint32_t *place_of(Making *self, uint64_t key) {
    return INDEX_SLOT(self->places, self->room - 1, self->rows, key);
}

/* Make so many more blocks rows, those of the first source first; return whether all are. A block of both
 * sources is one row, and of several entries of one order the first is one. */
static int join_rows(Making *self, uint32_t most) {
    const Reading *first = &self->sources[0].reading, *second = &self->sources[1].reading;
    uint64_t all = (uint64_t)first->count + second->count;
    for (; self->joined < all && most; self->joined++, most--) {
        int older = self->joined >= first->count;
        uint64_t at = older ? self->joined - first->count : self->joined;
        const Entry *entry = (older ? second : first)->entries + at;
        if (at && order_of(entry) == order_of(entry - 1)) {
            continue;
        }
        if (!older) {
            uint32_t *place = second->count ? place_of(self, entry->key >> 8) : NULL;
            self->rows[self->row_count++] = (Row){.key = entry->key >> 8, .set = entry->set};
            if (place != NULL) {
                *place = self->row_count;
            }
            continue;
        }
        uint32_t place = *place_of(self, entry->key >> 8);
        if (place) {
            self->rows[place - 1].other = entry->set;
        } else {
            self->rows[self->row_count++] = (Row){.key = entry->key >> 8, .other = entry->set};
        }
    }
    return self->joined == all;
}

static int width_of(const Making *self) {
    return PyDict_GET_SIZE(self->numbers) <= NARROW_SETS ? 2 : 4;
}

static void write_keys(const Making *self, uint32_t from, uint32_t end, char *to) {
    for (uint32_t i = from; i < end; i++) {
        if (self->rows[i].number != SKIPPED) {
            memcpy(to, &self->rows[i].key, KEY_BYTES);
            to += KEY_BYTES;
        }
    }
}

static void write_numbers(const Making *self, uint32_t from, uint32_t end, int width, char *to) {
    for (uint32_t i = from; i < end; i++) {
        if (self->rows[i].number != SKIPPED) {
            memcpy(to, &self->rows[i].number, (size_t)width);
            to += width;
        }
    }
}

/* Take the arguments of both ways; -1 with an error set. */
static int open_making(Making *self, Frozen *frozen, ARGUMENTS) {
    PyObject *older = nargs == 4 ? args[3] : Py_None;
    *self = (Making){.rows = NULL};
    if (nargs < 3 || nargs > 4 || !PyDict_Check(args[2]) ||
        (args[1] != Py_None && !PyLong_Check(args[1])) ||
        (older != Py_None && (!Py_IS_TYPE(older, &frozen_type) || older == (PyObject *)frozen))) {
        return set_error(PyExc_TypeError,
                         "it takes a number, a mask or None, a dict, and another Frozen or None");
    }
    self->source_count = older == Py_None ? 1 : 2;
    self->sources[0].frozen = frozen;
    self->sources[1].frozen = older == Py_None ? NULL : (Frozen *)older;
    self->live = args[1];
    self->numbers = args[2];
    return shard_number(args[0], &self->shard);
}

static PyObject *columns_of(const Making *self) {
    int width = width_of(self);
    PyObject *columns = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)self->count * (KEY_BYTES + width));
    NEED_OR_NULL(columns);
    write_keys(self, 0, self->row_count, PyBytes_AS_STRING(columns));
    write_numbers(self, 0, self->row_count, width,
                  PyBytes_AS_STRING(columns) + self->count * KEY_BYTES);
    return Py_BuildValue("LiN", (long long)self->count, width, columns);
}

PyObject *frozen_columns(Frozen *self, ARGUMENTS) {
    Making making;
    PyObject *found = NULL;
    TRY_OR_NULL(open_making(&making, self, args, nargs));
    int failed = 0;
    for (int one = 0; !failed && one < making.source_count; one++) {
        Source *source = making.sources + one;
        source->reading = frozen_read(source->frozen, making.shard);
        failed = source->reading.entries == NULL || open_numbers(source) < 0;
    }
    if (!failed && open_rows(&making) == 0) {
        join_rows(&making, UINT32_MAX);
        found = number_rows(&making, UINT32_MAX) < 0 ? NULL : columns_of(&making);
        for (int one = 0; found != NULL && one < making.source_count; one++) {
            frozen_done(making.sources[one].frozen, making.shard);
        }
    }
    close_making(&making);
    return found;
}

/* The steps of a part, each of which but the last ones is taken for both sources. */
enum { KEEPING, SORTING, JOINING, NUMBERING, KEYS, NUMBERS, RELEASING, DONE };

typedef struct {
    PyObject_HEAD
    Making making; /* owns its views and objects; its entries refer to sets of the tables */
    int step, source;
    uint32_t at; /* rows that are written */
    Sorting sorting;
    Entry *spare; /* what was needed to sort. 16 MB given back at once take 3 ms: all memory is in slices */
    uint32_t spare_count;
} Part;

PyObject *frozen_part(Frozen *self, ARGUMENTS) {
    Making making;
    TRY_OR_NULL(open_making(&making, self, args, nargs));
    Part *part = PyObject_New(Part, &part_type);
    NEED_OR_NULL(part);
    part->making = making;
    Py_INCREF(making.sources[0].frozen);
    Py_XINCREF(making.sources[1].frozen);
    Py_INCREF(making.live);
    Py_INCREF(making.numbers);
    part->step = KEEPING;
    part->source = 0;
    part->at = 0;
    part->sorting = (Sorting){.to = NULL};
    part->spare = NULL;
    part->spare_count = 0;
    return (PyObject *)part;
}

/* Give back what is behind `size` bytes; all for 0. */
static void *cut_memory(void *memory, size_t size) {
    if (size == 0) {
        PyMem_Free(memory);
        return NULL;
    }
    void *less = PyMem_Realloc(memory, size);
    return less == NULL ? memory : less;
}

/* Let go of the sets of so many entries of the present source, and of the memory of the entries and of as
 * many rows, from behind; return whether all are gone. */
static int release_some(Part *self, uint32_t most) {
    Making *making = &self->making;
    Source *source = making->sources + self->source;
    Reading *reading = &source->reading;
    Table *table = source->frozen->table;
    uint32_t count = reading->count < most ? reading->count : most;
    uint32_t rows = making->row_count < most ? making->row_count : most;
    table->changes++;
    for (uint32_t i = 0; i < count; i++) {
        sets_release(&table->sets, reading->entries[--reading->count].set);
    }
    making->row_count -= rows;
    reading->entries = cut_memory(reading->entries, reading->count * sizeof *reading->entries);
    making->rows = cut_memory(making->rows, making->row_count * sizeof *making->rows);
    return reading->count == 0;
}

static void part_dealloc(Part *self) {
    Making *making = &self->making;
    if (self->sorting.to != NULL) { /* all entries are in the other place at any time */
        making->sources[self->source].reading.entries = self->sorting.from;
        PyMem_Free(self->sorting.to);
    }
    for (self->source = 0; self->source < making->source_count; self->source++) {
        release_some(self, UINT32_MAX);
    }
    PyMem_Free(self->spare);
    Frozen *young = making->sources[0].frozen, *older = making->sources[1].frozen;
    PyObject *live = making->live, *numbers = making->numbers;
    close_making(making);
    Py_DECREF(young);
    Py_XDECREF(older);
    Py_DECREF(live);
    Py_DECREF(numbers);
    PyObject_Free(self);
}

/* Copy more of a source's shard; once all is, have it from its view. 1 at the end, -1: an error. */
static int keep_source(Source *self, uint32_t shard) {
    int done = frozen_keep_some(self->frozen, shard, SLICE);
    if (done == 1) {
        TRY(open_numbers(self));
        Kept *kept = self->frozen->kept + shard;
        self->reading = (Reading){kept->entries, kept->count};
        self->frozen->pending[shard] = 0;
        *kept = (Kept){NULL, 0, 0};
    }
    return done;
}

/* Sort more of a source's entries; 1 at the end, -1 with MemoryError set. */
static int sort_source(Part *self) {
    Reading *reading = &self->making.sources[self->source].reading;
    if (reading->count == 0) {
        return 1;
    }
    TRY_IF(self->sorting.to == NULL, sorting_open(&self->sorting, reading->entries,
                                                  reading->count));
    int done = sorting_step(&self->sorting, SLICE);
    if (done) {
        PyMem_Free(self->spare);
        reading->entries = self->sorting.from;
        self->spare = self->sorting.to;
        self->spare_count = reading->count;
        self->sorting.to = NULL;
    }
    return done;
}

/* Make more blocks rows; 1 at the end, -1 with MemoryError set. */
static int join_some(Part *self) {
    TRY_IF(self->making.rows == NULL, open_rows(&self->making));
    self->spare_count -= self->spare_count < SLICE ? self->spare_count : SLICE;
    self->spare = cut_memory(self->spare, self->spare_count * sizeof *self->spare);
    return join_rows(&self->making, SLICE);
}

/* Take a step that writes nothing; 1 when it is the last of its kind, -1: an error. */
static int prepare(Part *self) {
    Making *making = &self->making;
    switch (self->step) {
    case KEEPING:
        return keep_source(making->sources + self->source, making->shard);
    case SORTING:
        return sort_source(self);
    case JOINING:
        return join_some(self);
    default:
        return number_rows(making, SLICE);
    }
}

static PyObject *part_prepare(Part *self, PyObject *Py_UNUSED(nothing)) {
    REFUSE_OR_NULL(self->step > NUMBERING, PyExc_ValueError, "the part is prepared");
    int done = prepare(self);
    TRY_OR_NULL(done);
    if (!done) {
        Py_RETURN_NONE;
    }
    if (self->step <= SORTING && self->source + 1 < self->making.source_count) {
        self->source++;
        Py_RETURN_NONE;
    }
    self->source = 0;
    if (++self->step <= NUMBERING) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("Li", (long long)self->making.count, width_of(&self->making));
}

/* Return the next rows' keys or numbers; NULL with MemoryError set. */
static PyObject *write_some(Part *self) {
    const Making *making = &self->making;
    uint32_t left = making->row_count - self->at, end = self->at + (left < SLICE ? left : SLICE);
    int width = self->step == KEYS ? KEY_BYTES : width_of(making);
    Py_ssize_t count = 0;
    for (uint32_t i = self->at; i < end; i++) {
        count += making->rows[i].number != SKIPPED;
    }
    PyObject *piece = PyBytes_FromStringAndSize(NULL, count * width);
    NEED_OR_NULL(piece);
    if (self->step == KEYS) {
        write_keys(making, self->at, end, PyBytes_AS_STRING(piece));
    } else {
        write_numbers(making, self->at, end, width, PyBytes_AS_STRING(piece));
    }
    self->at = end;
    if (end == making->row_count) {
        self->at = 0;
        self->step++;
    }
    return piece;
}

static PyObject *part_piece(Part *self, PyObject *Py_UNUSED(nothing)) {
    REFUSE_OR_NULL(self->step < KEYS, PyExc_ValueError, "the part is not prepared");
    if (self->step == DONE) {
        Py_RETURN_NONE;
    }
    if (self->step < RELEASING) {
        return write_some(self);
    }
    if (release_some(self, SLICE) && ++self->source == self->making.source_count) {
        self->step = DONE;
    }
    return PyBytes_FromStringAndSize(NULL, 0);
}

METHODS(methods,
    METHOD_NOARGS("prepare", part_prepare),
    METHOD_NOARGS("piece", part_piece))

PyTypeObject part_type = {
    INNER_TYPE("Part", Part, part),
    .tp_methods = methods,
};
