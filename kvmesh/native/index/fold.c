/* A journal message into a table in one call: Table.fold. What a message is: core.blocks.events.
 *
 * A message is read twice: first to see that all of it is ordinary, then to apply it, so that one
 * that is not has changed nothing.
 */
#include "index/index.h"

#define VERSION 1
#define ENDS 64 /* core.blocks.events.ENDS */
#define MAX_ORDINAL (1ULL << 62)

enum { STORED, REMOVED };

typedef struct {
    const uint8_t *at, *end;
} Reader;

/* One event; `run` is what it stores or removes. */
typedef struct {
    int kind;
    uint64_t parent, tier;
    const uint8_t *run;
    Py_ssize_t count; /* blocks */
} Change;

/* Whose blocks change, and whose ends: NULL where it has none. */
typedef struct {
    Table *blocks, *ends;
    Holding *held, *ended;
} Places;

/* What a message did, in the order of the answer. `removed` counts what was there and what was not. */
typedef struct {
    Py_ssize_t events, stored, removed, missing, orphans;
    PyObject *gone; /* list of the runs removed, NULL for none */
    Py_ssize_t ends, ends_missing;
} Tally;

/* Read `size` bytes as a big-endian number; 0 when the message ends before. */
static int read_bytes(Reader *self, int size, uint64_t *value) {
    if (self->end - self->at < size) {
        return 0;
    }
    *value = 0;
    for (int i = 0; i < size; i++) {
        *value = *value << 8 | *self->at++;
    }
    return 1;
}

/* Read msgpack's code for what follows; 0 at the end. */
static int read_code(Reader *self, uint64_t *code) { return read_bytes(self, 1, code); }

/* Read a number in one of the forms that hold none below 0. */
static int read_number(Reader *self, uint64_t *value) {
    uint64_t code;
    EXPECT(read_code(self, &code));
    if (code < 0x80) {
        *value = code;
        return 1;
    }
    return code >= 0xcc && code <= 0xcf && read_bytes(self, 1 << (code - 0xcc), value);
}

static int read_array(Reader *self, uint64_t *length) {
    uint64_t code;
    EXPECT(read_code(self, &code));
    if ((code & 0xf0) == 0x90) {
        *length = code & 0x0f;
        return 1;
    }
    return (code == 0xdc && read_bytes(self, 2, length)) || (code == 0xdd && read_bytes(self, 4, length));
}

/* Read bytes that are whole blocks. */
static int read_run(Reader *self, Change *change) {
    uint64_t code, size;
    if (!read_code(self, &code) || code < 0xc4 || code > 0xc6 ||
        !read_bytes(self, 1 << (code - 0xc4), &size) || (uint64_t)(self->end - self->at) < size ||
        size % BLOCK_BYTES) {
        return 0;
    }
    change->run = self->at;
    change->count = (Py_ssize_t)(size / BLOCK_BYTES);
    self->at += size;
    return 1;
}

/* Read an event of device memory, or of ends there if those count; 0 for any other. */
static int read_change(Reader *self, Change *change, int ends) {
    uint64_t length, tag;
    if (!read_array(self, &length) || !read_number(self, &tag) || tag > REMOVED) {
        return 0;
    }
    uint64_t least = tag == STORED ? 3 : 2;
    change->kind = (int)tag;
    change->parent = change->tier = 0;
    return length >= least && length <= least + 1 &&
           (tag == REMOVED || read_number(self, &change->parent)) && read_run(self, change) &&
           (length == least || read_number(self, &change->tier)) &&
           (change->tier == 0 || (ends && change->tier == ENDS));
}

/* Read up to the first event; 0 unless it is the one that is expected. */
static int read_head(Reader *self, uint64_t epoch, uint64_t first_seq, uint64_t *events) {
    uint64_t fields, version, of_epoch, first;
    return read_array(self, &fields) && fields == 4 && read_number(self, &version) &&
           version == VERSION && read_number(self, &of_epoch) && of_epoch == epoch &&
           read_number(self, &first) && first == first_seq && first > 0 &&
           read_array(self, events) && *events > 0 && first + *events <= MAX_ORDINAL;
}

/* Tell whether all events are ordinary, and store no more than `room` blocks. */
static int check_changes(Reader self, uint64_t events, uint64_t room, int ends) {
    Change change;
    for (uint64_t i = 0; i < events; i++) {
        EXPECT(read_change(&self, &change, ends));
        if (change.kind == STORED) {
            if ((uint64_t)change.count > room) {
                return 0;
            }
            room -= (uint64_t)change.count;
        }
    }
    return self.at == self.end;
}

static int store_change(Table *self, Holding *holding, const Change *change, Tally *tally) {
    tally->stored += change->count;
    if (change->parent && !table_held_by(self, change->parent, holding->slot)) {
        tally->orphans += change->count;
        return 0;
    }
    return table_store_run(self, holding, change->run, change->count);
}

static int remove_change(Table *self, Holding *holding, const Change *change, Tally *tally) {
    long long before = holding->blocks;
    tally->gone = tally->gone == NULL ? PyList_New(0) : tally->gone;
    NEED(tally->gone);
    TRY(list_add(tally->gone, PyBytes_FromStringAndSize((const char *)change->run,
                                                        change->count * BLOCK_BYTES)));
    TRY(table_remove_run(self, holding, change->run, change->count));
    tally->removed += change->count;
    tally->missing += change->count - (Py_ssize_t)(before - holding->blocks);
    return 0;
}

/* Note ends, or that they are none any more: in any order, and behind any block. */
static int change_ends(Table *self, Holding *holding, const Change *change, Tally *tally) {
    if (change->kind == STORED) {
        tally->ends += change->count;
        return table_store_run(self, holding, change->run, change->count);
    }
    long long before = holding->blocks;
    TRY(table_remove_run(self, holding, change->run, change->count));
    tally->ends_missing += change->count - (Py_ssize_t)(before - holding->blocks);
    return 0;
}

static int apply_change(const Places *places, const Change *change, Tally *tally) {
    if (change->tier) {
        return change_ends(places->ends, places->ended, change, tally);
    }
    return change->kind == STORED ? store_change(places->blocks, places->held, change, tally)
                                  : remove_change(places->blocks, places->held, change, tally);
}

static PyObject *fold(const Places *places, Reader *reader, uint64_t events) {
    Tally tally = {.events = (Py_ssize_t)events};
    Change change;
    int failed = 0;
    for (uint64_t i = 0; i < events && !failed; i++) {
        failed = !read_change(reader, &change, places->ends != NULL) ||
                 apply_change(places, &change, &tally) < 0;
    }
    PyObject *answer = NULL;
    if (!failed) {
        answer = Py_BuildValue("(nnnnnO)", tally.events, tally.stored, tally.removed, tally.missing,
                               tally.orphans, tally.gone == NULL ? Py_None : tally.gone);
    }
    if (answer != NULL && places->ends != NULL) {
        answer = Py_BuildValue("(Nnn)", answer, tally.ends, tally.ends_missing);
    }
    Py_XDECREF(tally.gone);
    return answer;
}

/* Read a number that may be beyond 64 bits, or below 0: then nothing fits it, 0. -1 with TypeError. */
static int read_ordinal(PyObject *object, uint64_t *value) {
    *value = PyLong_AsUnsignedLongLong(object);
    if (*value != UINT64_MAX || !PyErr_Occurred()) {
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_OverflowError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

/* Fold a message, of which `args` are the data, the epoch, the first number and the room. */
static PyObject *fold_message(const Places *places, PyObject *const *args) {
    uint64_t epoch, first_seq, room, events;
    REFUSE_OR_NULL(!PyBytes_CheckExact(args[0]), PyExc_TypeError, "a message is bytes");
    int known[] = {read_ordinal(args[1], &epoch), 0, 0};
    known[1] = known[0] < 0 ? -1 : read_ordinal(args[2], &first_seq);
    known[2] = known[1] < 0 ? -1 : read_ordinal(args[3], &room);
    if (known[2] < 0) {
        return NULL;
    }
    const uint8_t *start = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    Reader reader = {start, start + PyBytes_GET_SIZE(args[0])};
    if (!known[0] || !known[1] || !known[2] || !read_head(&reader, epoch, first_seq, &events) ||
        !check_changes(reader, events, room, places->ends != NULL)) {
        Py_RETURN_NONE;
    }
    return fold(places, &reader, events);
}

/* fold(holding, data, epoch, first_seq, room) */
PyObject *table_fold(Table *self, PyObject *const *args, Py_ssize_t nargs) {
    REFUSE_OR_NULL(nargs != 5, PyExc_TypeError, "fold takes 5 arguments, not %zd", nargs);
    REFUSE_OR_NULL(!Py_IS_TYPE(args[0], &holding_type), PyExc_TypeError,
                   "a Holding and bytes are needed");
    Places places = {.blocks = self, .held = (Holding *)args[0]};
    return fold_message(&places, args + 1);
}

/* fold_ends(holding, data, epoch, first_seq, room, (table, holding)) */
PyObject *table_fold_ends(Table *self, PyObject *const *args, Py_ssize_t nargs) {
    REFUSE_OR_NULL(nargs != 6, PyExc_TypeError, "fold_ends takes 6 arguments, not %zd", nargs);
    Places places = {.blocks = self, .held = (Holding *)args[0]};
    REFUSE_OR_NULL(!Py_IS_TYPE(args[0], &holding_type) || !PyTuple_Check(args[5]) ||
                   !PyArg_ParseTuple(args[5], "O!O!", &table_type, &places.ends, &holding_type,
                                     &places.ended), PyExc_TypeError,
                   "a Holding, bytes, and (Table, Holding) of ends are needed");
    return fold_message(&places, args + 1);
}
