/* BookingOutbox: core.routing.peers.outbox, compiled. Records are written where they are read from. */
#include "outbox.h"
#include "arguments.h"
#include "booking_wire.h"
#include "decide.h"
#include "graded.h"

#include <string.h>
#include <structmember.h>

enum { FAILED_BYTES = 24 };
enum { VERDICT_UNKNOWN, VERDICT_SERVED };
enum { MAX_KIND = 32, MOST_NAME = 65535, MOST_RETRIED = 1024 };
enum { MOST_WORKERS = 1 << 14, FIRST_ROOM = 4096, MOST_BYTES = 4 << 20 };

/* A booking or a worker that peers know by `number`; `upto` is what was told of it last: output
 * tokens of a booking, the number of the state in which a worker was named.
 */
typedef struct {
    PyObject_HEAD
    uint32_t number;
    long long upto;
} Told;

static struct {
    PyObject *blocks, *upto, *verdict, *kind, *lost_s, *retry_after_s, *placed, *first_token, *ended;
    PyObject *most_blocks;
} names;

int outbox_ready(void) {
    names.blocks = PyUnicode_InternFromString("blocks");
    names.upto = PyUnicode_InternFromString("upto");
    names.verdict = PyUnicode_InternFromString("verdict");
    names.kind = PyUnicode_InternFromString("kind");
    names.lost_s = PyUnicode_InternFromString("lost_s");
    names.retry_after_s = PyUnicode_InternFromString("retry_after_s");
    names.placed = PyUnicode_InternFromString("placed");
    names.first_token = PyUnicode_InternFromString("first_token");
    names.ended = PyUnicode_InternFromString("ended");
    names.most_blocks = PyLong_FromLongLong(graded_depth(MOST_GRADED));
    return PyErr_Occurred() ? -1 : 0;
}

static Told *told_new(uint32_t number, long long upto) {
    Told *self = PyObject_New(Told, &told_type);
    if (self != NULL) {
        self->number = number;
        self->upto = upto;
    }
    return self;
}

static void put16(uint8_t *at, uint16_t value) {
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static void put32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) {
        at[i] = (uint8_t)(value >> 8 * i);
    }
}

static void put64(uint8_t *at, uint64_t value) {
    for (int i = 0; i < 8; i++) {
        at[i] = (uint8_t)(value >> 8 * i);
    }
}

static void put_seconds(uint8_t *at, double seconds) {
    uint64_t bits;
    memcpy(&bits, &seconds, sizeof bits);
    put64(at, bits);
}

static uint32_t clamp32(long long amount) { return (uint32_t)within(0, amount, UINT32_MAX); }

static size_t padded(size_t bytes) { return (bytes + 7) & ~(size_t)7; }

/* Leave out all that waits, and `more` events: peers find the gap in their numbers. */
static void leave_out(BookingOutbox *self, unsigned long long more) {
    self->untold += (long long)(self->events + more);
    self->next_seq += self->events + more;
    self->events = 0;
    self->size = 0;
}

/* Return a new record of zeros, to be written; NULL when there is no memory for it. */
static uint8_t *add(BookingOutbox *self, uint8_t kind, uint32_t number, size_t bytes) {
    if (self->size + bytes > MOST_BYTES) {
        leave_out(self, 0);
    }
    if (self->size + bytes > self->room) {
        size_t room = self->size + bytes + (self->size + bytes) / 2;
        room = room > FIRST_ROOM ? room : FIRST_ROOM;
        uint8_t *grown = PyMem_Realloc(self->records, room);
        if (grown == NULL) {
            leave_out(self, 1);
            return NULL;
        }
        self->records = grown;
        self->room = room;
    }
    uint8_t *record = self->records + self->size;
    memset(record, 0, bytes);
    record[0] = kind;
    put32(record + 4, number);
    self->size += bytes;
    self->events++;
    return record;
}

/* Call who sends what waits, once. May run anything. */
static void wake(BookingOutbox *self) {
    if (self->gathering || self->on_first == NULL || self->on_first == Py_None) {
        return;
    }
    self->gathering = 1;
    PyObject *on_first = Py_NewRef(self->on_first), *answer = PyObject_CallNoArgs(on_first);
    if (answer == NULL) {
        PyErr_WriteUnraisable(on_first);
    }
    Py_XDECREF(answer);
    Py_DECREF(on_first);
}

static int has_other(const BookingOutbox *self) {
    return self->other != NULL && self->other != Py_None;
}

/* Tell the other outbox, which must not keep a request from going on. May run anything. */
static void tell_other(BookingOutbox *self, PyObject *method, PyObject *first, PyObject *second) {
    PyObject *other = Py_NewRef(self->other);
    PyObject *answer = PyObject_CallMethodObjArgs(other, method, first, second, NULL);
    if (answer == NULL) {
        PyErr_WriteUnraisable(other);
    }
    Py_XDECREF(answer);
    Py_DECREF(other);
}

/* Return what is known under a name, borrowed; NULL without an error set when there is nothing. */
static Told *find(PyObject *known, PyObject *name) {
    Told *told = (Told *)PyDict_GetItemWithError(known, name);
    if (told == NULL) {
        PyErr_Clear();
    }
    return told;
}

/* Take out what is known under a name: a new reference; NULL as `find`. */
static Told *pop(PyObject *known, PyObject *name) {
    Told *told = find(known, name);
    if (told == NULL) {
        return NULL;
    }
    Py_INCREF(told);
    if (PyDict_DelItem(known, name) < 0) {
        PyErr_Clear();
    }
    return told;
}

/* The hashes that stand for a prompt. */
typedef struct {
    uint64_t at[MOST_GRADED];
    Py_ssize_t count;
    long long blocks;
} Graded;

static void put_graded(Graded *out, const uint64_t *hashes, long long known) {
    known = known < out->blocks ? known : out->blocks;
    out->count = (Py_ssize_t)graded_count(known);
    for (Py_ssize_t i = 0; i < out->count; i++) {
        out->at[i] = hashes[graded_depth(i + 1) - 1];
    }
    if (known && known == out->blocks && graded_depth(out->count) != known) {
        out->at[out->count++] = hashes[known - 1];
    }
}

/* Of sharing keys, with 0 for the hashes between. */
static void put_keys(Graded *out, const Booking *booking, long long size) {
    long long keys = Py_SIZE(booking), deepest = key_depth(keys);
    long long blocks = booking->prompt_tokens / size + (booking->prompt_tokens % size > 0);
    blocks = blocks > deepest ? blocks : deepest;
    out->blocks = blocks < graded_depth(MOST_GRADED) ? blocks : graded_depth(MOST_GRADED);
    keys = keys < key_count(out->blocks) ? keys : key_count(out->blocks);
    out->count = (Py_ssize_t)graded_count(key_depth(keys));
    memset(out->at, 0, (size_t)out->count * sizeof *out->at);
    for (long long number = 1; number <= keys; number++) {
        out->at[key_place(number)] = booking->keys[number - 1];
    }
}

/* Of what computes its hashes when asked, in Python; -1 with an error set. May run anything. */
static int ask_graded(Graded *out, PyObject *hashes) {
    PyObject *given = PyObject_GetAttr(hashes, names.blocks);
    long long blocks = given == NULL ? -1 : PyLong_AsLongLong(given);
    Py_XDECREF(given);
    if (PyErr_Occurred()) {
        return -1;
    }
    out->blocks = within(0, blocks, graded_depth(MOST_GRADED));
    given = PyLong_FromLongLong(out->blocks);
    PyObject *found =
        given == NULL ? NULL : PyObject_CallMethodOneArg(hashes, names.upto, given);
    Py_XDECREF(given);
    Py_buffer view;
    if (found == NULL || PyObject_GetBuffer(found, &view, PyBUF_SIMPLE) < 0) {
        Py_XDECREF(found);
        return -1;
    }
    put_graded(out, view.buf, view.len / (Py_ssize_t)sizeof *out->at);
    PyBuffer_Release(&view);
    Py_DECREF(found);
    return 0;
}

/* Return whether the whole hashes of a prompt are known, which is believed cached. */
static int is_believed(const Booking *booking) {
    const PyObject *hashes = booking->hashes;
    return hashes != NULL && hashes != Py_None && !PyBytes_Check(hashes);
}

static int read_graded(const BookingOutbox *self, const Booking *booking, Graded *out) {
    PyObject *hashes = booking->hashes;
    if (!is_believed(booking)) {
        put_keys(out, booking, self->sequences->block_size);
        return 0;
    }
    if (Py_IS_TYPE(hashes, &hashed_type)) {
        long long known = Py_SIZE(hashes);
        out->blocks = known < graded_depth(MOST_GRADED) ? known : graded_depth(MOST_GRADED);
        put_graded(out, ((Hashed *)hashes)->at, known);
        return 0;
    }
    Py_INCREF(hashes);
    int failed = ask_graded(out, hashes);
    Py_DECREF(hashes);
    return failed;
}

/* Tell a worker's name if that is due; 1 with its number, 0 when it cannot be told. */
static int name_worker(BookingOutbox *self, PyObject *name, uint32_t *number) {
    Told *told = find(self->workers, name);
    if (told != NULL && told->upto == self->state) {
        *number = told->number;
        return 1;
    }
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (text == NULL || length > MOST_NAME) {
        return 0;
    }
    if (told == NULL) {
        if (PyDict_GET_SIZE(self->workers) >= MOST_WORKERS) {
            PyDict_Clear(self->workers);
        }
        told = told_new(self->next_worker, self->state);
        if (told == NULL || PyDict_SetItem(self->workers, name, (PyObject *)told) < 0) {
            Py_XDECREF(told);
            return 0;
        }
        self->next_worker++;
        Py_DECREF(told);
    }
    told->upto = self->state;
    *number = told->number;
    uint8_t *record = add(self, RECORD_NAMED, told->number, 8 + padded((size_t)length));
    if (record == NULL) {
        return 0;
    }
    put16(record + 2, (uint16_t)length);
    memcpy(record + 8, text, (size_t)length);
    return 1;
}

/* Return what a booking is known by, made when it is told the first time: borrowed; NULL without
 * memory.
 */
static Told *number_booking(BookingOutbox *self, PyObject *request_id) {
    Told *told = find(self->bookings, request_id);
    if (told != NULL) {
        return told;
    }
    told = pop(self->retried, request_id);
    if (told == NULL && (told = told_new(self->number + 1, 0)) != NULL) {
        self->number++;
    }
    if (told == NULL || PyDict_SetItem(self->bookings, request_id, (PyObject *)told) < 0) {
        Py_XDECREF(told);
        return NULL;
    }
    told->upto = 0;
    Py_DECREF(told);
    return told;
}

/* Return the blocks of output that were expected when the booking was placed. */
static long long expected_blocks(const Booking *booking, long long size) {
    long long end = booking->prompt_tokens + booking->output_tokens;
    long long grown = (end + size - 1) / size - (booking->prompt_tokens + size - 1) / size;
    return booking->expected_blocks + grown + booking->foreseen_blocks;
}

/* Tell of a booking under the number it has, or gets: borrowed; NULL for one that cannot be told.
 * May run anything before it writes: hold the booking.
 */
static Told *place(BookingOutbox *self, const Booking *booking) {
    Graded graded;
    uint32_t worker;
    Told *told = NULL;
    if (read_graded(self, booking, &graded) == 0 &&
        name_worker(self, booking->worker, &worker)) {
        told = number_booking(self, booking->request_id);
    }
    if (told == NULL) {
        PyErr_Clear();
        self->untold++;
        return NULL;
    }
    size_t hashes = (size_t)graded.count * sizeof *graded.at;
    uint8_t *record = add(self, RECORD_PLACED, told->number, PLACED_BYTES + hashes);
    if (record == NULL) {
        return told;
    }
    record[1] = (uint8_t)((booking->streams ? PLACED_STREAMS : 0) | (is_believed(booking) ? PLACED_BELIEVED : 0) |
                          (booking->turn ? PLACED_TURN : 0));
    put16(record + 2, (uint16_t)graded.count);
    put32(record + 8, worker);
    put32(record + 12, (uint32_t)graded.blocks);
    put32(record + 16, clamp32(booking->prompt_tokens));
    put32(record + 20, clamp32(booking->uncached_tokens));
    put32(record + 24, clamp32(expected_blocks(booking, self->sequences->block_size)));
    for (Py_ssize_t i = 0; i < graded.count; i++) {
        put64(record + PLACED_BYTES + 8 * i, graded.at[i]);
    }
    return told;
}

static int is_local(const Booking *booking) { return PyUnicode_GET_LENGTH(booking->owner) == 0; }

void outbox_placed(BookingOutbox *self, Booking *booking) {
    if (!has_other(self) && (!is_local(booking) || find(self->bookings, booking->request_id))) {
        return;
    }
    Py_INCREF(self);
    if (has_other(self)) {
        tell_other(self, names.placed, (PyObject *)booking, NULL);
    } else {
        place(self, booking);
    }
    wake(self);
    Py_DECREF(self);
}

void outbox_first_token(BookingOutbox *self, PyObject *request_id) {
    const Told *told = NULL;
    if (!has_other(self) && (told = find(self->bookings, request_id)) == NULL) {
        return;
    }
    Py_INCREF(self);
    if (told == NULL) {
        tell_other(self, names.first_token, request_id, NULL);
    } else {
        add(self, RECORD_PREFILLED, told->number, 8);
    }
    wake(self);
    Py_DECREF(self);
}

void outbox_served(BookingOutbox *self, PyObject *request_id) {
    Told *told = NULL;
    if (!has_other(self) && (told = pop(self->bookings, request_id)) == NULL) {
        return;
    }
    Py_INCREF(self);
    if (told == NULL) {
        tell_other(self, names.ended, request_id, NULL);
    } else {
        add(self, RECORD_ENDED, told->number, 8);
        Py_DECREF(told);
    }
    wake(self);
    Py_DECREF(self);
}

/* How an attempt failed; `kind` is bytes. */
typedef struct {
    long verdict;
    PyObject *kind;
    double lost_s, retry_after_s;
} Failure;

/* Tell that a booking, which is taken out already, failed, and keep its number for a second try. */
static void fail(BookingOutbox *self, PyObject *request_id, Told *told, const Failure *failure) {
    Py_ssize_t length = failure->kind == NULL ? 0 : PyBytes_GET_SIZE(failure->kind);
    uint8_t *record = add(self, RECORD_FAILED, told->number, FAILED_BYTES + padded((size_t)length));
    if (record != NULL) {
        record[1] = (uint8_t)failure->verdict;
        record[2] = (uint8_t)length;
        put_seconds(record + 8, failure->lost_s);
        put_seconds(record + 16, failure->retry_after_s);
        if (length) {
            memcpy(record + FAILED_BYTES, PyBytes_AS_STRING(failure->kind), (size_t)length);
        }
    }
    PyObject *oldest, *known;
    Py_ssize_t at = 0;
    if (PyDict_GET_SIZE(self->retried) >= MOST_RETRIED &&
        PyDict_Next(self->retried, &at, &oldest, &known)) {
        Py_INCREF(oldest);
        PyDict_DelItem(self->retried, oldest);
        Py_DECREF(oldest);
    }
    if (PyErr_Occurred() || PyDict_SetItem(self->retried, request_id, (PyObject *)told) < 0) {
        PyErr_Clear();
    }
}

static int read_seconds(PyObject *attempt, PyObject *name, double *seconds) {
    PyObject *given = PyObject_GetAttr(attempt, name);
    *seconds = given == NULL ? -1.0 : PyFloat_AsDouble(given);
    Py_XDECREF(given);
    return PyErr_Occurred() ? -1 : 0;
}

/* Read an attempt; -1 with an error set. May run anything. `kind` is to be let go either way. */
static int read_failure(PyObject *attempt, Failure *out) {
    PyObject *verdict = PyObject_GetAttr(attempt, names.verdict);
    out->verdict = verdict == NULL ? -1 : PyLong_AsLong(verdict);
    Py_XDECREF(verdict);
    if (PyErr_Occurred()) {
        return -1;
    }
    PyObject *kind = PyObject_GetAttr(attempt, names.kind);
    if (kind != NULL && !PyUnicode_Check(kind)) {
        PyErr_Format(PyExc_TypeError, "an attempt's kind is a str, not %.100R", kind);
        Py_CLEAR(kind);
    }
    PyObject *cut = kind == NULL ? NULL : PyUnicode_Substring(kind, 0, MAX_KIND);
    Py_XDECREF(kind);
    out->kind = cut == NULL ? NULL : PyUnicode_AsEncodedString(cut, "utf-8", "replace");
    Py_XDECREF(cut);
    if (out->kind == NULL || read_seconds(attempt, names.lost_s, &out->lost_s) < 0) {
        return -1;
    }
    return read_seconds(attempt, names.retry_after_s, &out->retry_after_s);
}

static PyObject *call_placed(BookingOutbox *self, PyObject *booking) {
    if (!Py_IS_TYPE(booking, &booking_type)) {
        return PyErr_Format(PyExc_TypeError, "a booking is a Booking, not %.100R", booking);
    }
    outbox_placed(self, (Booking *)booking);
    Py_RETURN_NONE;
}

static PyObject *call_first_token(BookingOutbox *self, PyObject *given) {
    PyObject *request_id = read_text("a request id", given);
    if (request_id == NULL) {
        return NULL;
    }
    outbox_first_token(self, request_id);
    Py_DECREF(request_id);
    Py_RETURN_NONE;
}

/* ended(request_id, attempt=SERVED) */
static PyObject *call_ended(BookingOutbox *self, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *keywords) {
    static const char *const parameters[] = {"request_id", "attempt"};
    PyObject *given[2];
    if (sort_arguments("ended", parameters, 2, 1, args, nargs, keywords, given) < 0) {
        return NULL;
    }
    Failure failure = {.verdict = VERDICT_SERVED};
    PyObject *request_id = read_text("a request id", given[0]);
    if (request_id == NULL || (given[1] != NULL && read_failure(given[1], &failure) < 0)) {
        Py_XDECREF(request_id);
        Py_XDECREF(failure.kind);
        return NULL;
    }
    Told *told;
    if (failure.verdict == VERDICT_SERVED) {
        outbox_served(self, request_id);
    } else if (has_other(self)) {
        tell_other(self, names.ended, request_id, given[1]);
        wake(self);
    } else if ((told = pop(self->bookings, request_id)) != NULL) {
        fail(self, request_id, told, &failure);
        Py_DECREF(told);
        wake(self);
    }
    Py_DECREF(request_id);
    Py_XDECREF(failure.kind);
    Py_RETURN_NONE;
}

/* Return a live booking of this replica's own, borrowed; NULL: there is none of that id. */
static Booking *find_own(const BookingOutbox *self, PyObject *request_id) {
    Booking *booking = sequences_find(self->sequences, request_id);
    PyErr_Clear();
    return booking != NULL && is_local(booking) ? booking : NULL;
}

static void tell_output(BookingOutbox *self, Told *told, long long tokens) {
    told->upto = tokens;
    uint8_t *record = add(self, RECORD_GREW, told->number, 16);
    if (record != NULL) {
        put64(record + 8, (uint64_t)tokens);
    }
}

static PyObject *call_tell_growth(BookingOutbox *self, PyObject *none) {
    (void)none;
    PyObject *gone = PyList_New(0), *request_id, *known;
    if (gone == NULL) {
        return NULL;
    }
    /* Nothing in this loop makes an object that the collector knows, so nobody else runs. */
    for (Py_ssize_t at = 0; PyDict_Next(self->bookings, &at, &request_id, &known);) {
        const Booking *booking = find_own(self, request_id);
        if (booking == NULL) {
            if (PyList_Append(gone, request_id) < 0) {
                break;
            }
        } else if (booking->output_tokens > ((Told *)known)->upto) {
            tell_output(self, (Told *)known, booking->output_tokens);
        }
    }
    Failure unknown = {.verdict = VERDICT_UNKNOWN};
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < PyList_GET_SIZE(gone); i++) {
        Told *told = pop(self->bookings, PyList_GET_ITEM(gone, i));
        if (told != NULL) {
            fail(self, PyList_GET_ITEM(gone, i), told, &unknown);
            Py_DECREF(told);
        }
    }
    Py_DECREF(gone);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *call_begin_state(BookingOutbox *self, PyObject *none) {
    (void)none;
    self->state++;
    add(self, RECORD_STATE_BEGINS, 0, 8);
    Py_RETURN_NONE;
}

static PyObject *call_end_state(BookingOutbox *self, PyObject *none) {
    (void)none;
    add(self, RECORD_STATE_ENDS, 0, 8);
    Py_RETURN_NONE;
}

static void retell(BookingOutbox *self, const Booking *booking) {
    Told *told = find_own(self, booking->request_id) == booking ? place(self, booking) : NULL;
    if (told == NULL) {
        return;
    }
    if (!booking->prefilling) {
        add(self, RECORD_PREFILLED, told->number, 8);
    }
    if (booking->output_tokens) {
        tell_output(self, told, booking->output_tokens);
    }
}

static PyObject *call_retell(BookingOutbox *self, PyObject *bookings) {
    PyObject *each = PyObject_GetIter(bookings), *booking;
    while (each != NULL && (booking = PyIter_Next(each)) != NULL) {
        if (Py_IS_TYPE(booking, &booking_type)) {
            retell(self, (Booking *)booking);
        } else {
            PyErr_Format(PyExc_TypeError, "a booking is a Booking, not %.100R", booking);
            Py_CLEAR(each);
        }
        Py_DECREF(booking);
    }
    Py_XDECREF(each);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *call_restart(BookingOutbox *self, PyObject *given) {
    unsigned long long next_seq = PyLong_AsUnsignedLongLong(given);
    if (PyErr_Occurred()) {
        return NULL;
    }
    self->next_seq = next_seq;
    self->size = 0;
    self->events = 0;
    PyDict_Clear(self->bookings);
    PyDict_Clear(self->retried);
    Py_RETURN_NONE;
}

/* Consecutive records. */
typedef struct {
    const uint8_t *at;
    size_t bytes;
    unsigned long long events, first_seq;
} Run;

static PyObject *message(const BookingOutbox *self, const Run *run, PyObject *shares) {
    Py_ssize_t behind = shares == NULL ? 0 : PyBytes_GET_SIZE(shares);
    PyObject *made = PyBytes_FromStringAndSize(NULL, HEAD_BYTES + (Py_ssize_t)run->bytes + behind);
    if (made == NULL) {
        return NULL;
    }
    uint8_t *out = (uint8_t *)PyBytes_AS_STRING(made);
    memset(out, 0, HEAD_BYTES);
    out[0] = RECORDS_VERSION;
    out[1] = behind ? HEAD_SHARES : 0;
    put32(out + 4, (uint32_t)run->events);
    put64(out + 8, self->epoch);
    put64(out + 16, run->first_seq);
    if (run->bytes) {
        memcpy(out + HEAD_BYTES, run->at, run->bytes);
    }
    if (behind) {
        memcpy(out + HEAD_BYTES + run->bytes, PyBytes_AS_STRING(shares), (size_t)behind);
    }
    return made;
}

static int append_message(const BookingOutbox *self, PyObject *taken, const Run *run,
                          PyObject *shares) {
    PyObject *made = message(self, run, shares);
    int failed = made == NULL ? -1 : PyList_Append(taken, made);
    Py_XDECREF(made);
    return failed;
}

/* Append the messages of `all` records; -1 with MemoryError set. */
static int split(const BookingOutbox *self, PyObject *taken, const Run *all,
                 const Py_ssize_t *bounds, PyObject *shares) {
    Run run = {.at = all->at, .first_seq = all->first_seq};
    const uint8_t *end = all->at + all->bytes;
    while (run.at < end) {
        run.bytes += (size_t)wire_record_bytes(run.at + run.bytes);
        run.events++;
        int last = run.at + run.bytes >= end;
        if (last || (Py_ssize_t)run.events >= bounds[0] || (Py_ssize_t)run.bytes >= bounds[1]) {
            if (append_message(self, taken, &run, last ? shares : NULL) < 0) {
                return -1;
            }
            run = (Run){.at = run.at + run.bytes, .first_seq = run.first_seq + run.events};
        }
    }
    return 0;
}

static int read_shares(PyObject *given) {
    if (given == NULL || PyBytes_Check(given)) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "shares are bytes, not %.100R", given);
    return -1;
}

/* take(max_events, max_bytes, shares=b"") -> messages */
static PyObject *call_take(BookingOutbox *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs < 2 || nargs > 3) {
        return PyErr_Format(PyExc_TypeError, "take takes 2 or 3 arguments, not %zd", nargs);
    }
    PyObject *shares = nargs == 3 ? args[2] : NULL;
    Py_ssize_t bounds[] = {PyLong_AsSsize_t(args[0]), 0};
    if (PyErr_Occurred() || ((bounds[1] = PyLong_AsSsize_t(args[1])) == -1 && PyErr_Occurred()) ||
        read_shares(shares) < 0) {
        return NULL;
    }
    PyObject *taken = PyList_New(0);
    if (taken == NULL) {
        return NULL;
    }
    /* What comes while the messages are made has records and numbers of its own. */
    uint8_t *records = self->records;
    size_t room = self->room;
    Run all = {records, self->size, self->events, self->next_seq};
    self->records = NULL;
    self->next_seq += self->events;
    self->size = self->room = 0;
    self->events = 0;
    int failed = all.events ? split(self, taken, &all, bounds, shares)
                 : shares != NULL && PyBytes_GET_SIZE(shares)
                     ? append_message(self, taken, &all, shares)
                     : 0;
    if (self->records == NULL && room <= MOST_BYTES / 16) {
        self->records = records;
        self->room = room;
    } else {
        PyMem_Free(records);
    }
    if (failed < 0) {
        Py_CLEAR(taken);
    }
    return taken;
}

/* beat(shares=b"") -> message */
static PyObject *call_beat(BookingOutbox *self, PyObject *const *args, Py_ssize_t nargs) {
    if (nargs > 1) {
        return PyErr_Format(PyExc_TypeError, "beat takes 1 argument, not %zd", nargs);
    }
    PyObject *shares = nargs ? args[0] : NULL;
    Run none = {.first_seq = self->next_seq};
    return read_shares(shares) < 0 ? NULL : message(self, &none, shares);
}

static PyObject *outbox_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *parameters[] = {"sequences", "epoch", NULL};
    PyObject *sequences, *epoch;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O", parameters, &sequences_type,
                                     &sequences, &epoch)) {
        return NULL;
    }
    unsigned long long number = PyLong_AsUnsignedLongLong(epoch);
    BookingOutbox *self =
        PyErr_Occurred() ? NULL : (BookingOutbox *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->sequences = (Sequences *)Py_NewRef(sequences);
    self->epoch = number;
    self->next_seq = 1;
    self->bookings = PyDict_New();
    self->retried = PyDict_New();
    self->workers = PyDict_New();
    if (self->bookings == NULL || self->retried == NULL || self->workers == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int outbox_traverse(BookingOutbox *self, visitproc visit, void *arg) {
    Py_VISIT(self->sequences);
    Py_VISIT(self->on_first);
    Py_VISIT(self->other);
    return 0;
}

/* The tables stay: they are part of no cycle, and methods need them. */
static int outbox_clear(BookingOutbox *self) {
    Py_CLEAR(self->on_first);
    Py_CLEAR(self->other);
    return 0;
}

static void outbox_dealloc(BookingOutbox *self) {
    PyObject_GC_UnTrack(self);
    outbox_clear(self);
    Py_XDECREF(self->sequences);
    Py_XDECREF(self->bookings);
    Py_XDECREF(self->retried);
    Py_XDECREF(self->workers);
    PyMem_Free(self->records);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMemberDef members[] = {
    {"epoch", T_ULONGLONG, offsetof(BookingOutbox, epoch), READONLY, NULL},
    {"next_seq", T_ULONGLONG, offsetof(BookingOutbox, next_seq), READONLY, NULL},
    {"waiting", T_ULONGLONG, offsetof(BookingOutbox, events), READONLY, "Events to be taken."},
    {"untold", T_LONGLONG, offsetof(BookingOutbox, untold), READONLY, NULL},
    {"gathering", T_BOOL, offsetof(BookingOutbox, gathering), 0, NULL},
    {"on_first", T_OBJECT, offsetof(BookingOutbox, on_first), 0, NULL},
    {"other", T_OBJECT, offsetof(BookingOutbox, other), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"placed", (PyCFunction)call_placed, METH_O, "Tell of a booking."},
    {"first_token", (PyCFunction)call_first_token, METH_O, "Tell of a first token."},
    {"ended", (PyCFunction)(void (*)(void))call_ended, METH_FASTCALL | METH_KEYWORDS,
     "ended(request_id, attempt=SERVED): tell how a request ended."},
    {"tell_growth", (PyCFunction)call_tell_growth, METH_NOARGS, "Tell what has grown."},
    {"begin_state", (PyCFunction)call_begin_state, METH_NOARGS, "Tell that all bookings follow."},
    {"retell", (PyCFunction)call_retell, METH_O, "Tell of bookings as they are now."},
    {"end_state", (PyCFunction)call_end_state, METH_NOARGS, "Tell that the state is complete."},
    {"restart", (PyCFunction)call_restart, METH_O, "Forget all, and go on with this number."},
    {"take", (PyCFunction)(void (*)(void))call_take, METH_FASTCALL,
     "take(max_events, max_bytes, shares=b\"\") -> messages"},
    {"beat", (PyCFunction)(void (*)(void))call_beat, METH_FASTCALL,
     "beat(shares=b\"\") -> a message without events"},
    {NULL, NULL, 0, NULL},
};

static void told_dealloc(Told *self) { PyObject_Free(self); }

PyTypeObject told_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvmesh._native.Told",
    .tp_doc = "What peers know by a number.",
    .tp_basicsize = sizeof(Told),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = (destructor)told_dealloc,
};

PyTypeObject outbox_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "kvmesh._native.BookingOutbox",
    .tp_doc = "What is to be told of bookings.",
    .tp_basicsize = sizeof(BookingOutbox),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = outbox_new,
    .tp_dealloc = (destructor)outbox_dealloc,
    .tp_traverse = (traverseproc)outbox_traverse,
    .tp_clear = (inquiry)outbox_clear,
    .tp_members = members,
    .tp_methods = methods,
};
