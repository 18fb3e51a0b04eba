/* MessageFold: a message of a peer's booking records, folded in one call.
 *
 * What it does is what core.routing.event_fold.EventFold does record by record, over the same
 * state, to the last bit; it asks that one of what is rare: failures, names, ends of states, workers
 * that are no members, and bookings for which there is no room.
 */
#include "base/names.h"
#include "base/shell.h"
#include "beliefs/approx.h"
#include "peers/booking_wire.h"
#include "peers/peer.h"
#include "speeds/speeds.h"

#include <math.h>

#define TOLD_AT_ONCE 32

typedef struct {
    PyObject_HEAD
    Sequences *sequences;
    Speeds *speeds;
    Approx *hints;        /* NULL: nothing is believed */
    PyObject *events;     /* core.routing.event_fold.EventFold */
    PyObject *members;    /* dict of workers */
    PyObject *strangers;  /* dict of workers */
    PyObject *out;        /* set of workers that something speaks against */
    PyObject *distrusted; /* set of workers whose events do not count */
    PyObject *late;       /* dict of workers that cache late: core.members.late_prompts */
    double predict_ttl_s, approx_ttl_s;
    int has_index;
    Py_ssize_t most_bookings, most_in_all; /* of one peer, of all */
    long long applied, gaps;
} MessageFold;

/* What answers showed of one worker's health that it was not told yet. All of it is of one time, so
 * that the order does not matter as long as nothing speaks against the worker.
 */
typedef struct {
    PyObject *worker, *request_id; /* owned */
    long long served;
    int began;
} Answers;

typedef struct {
    MessageFold *fold;
    Peer *peer;
    double now;
    Answers answers[TOLD_AT_ONCE];
    int count;
} Turn;

static int report_health(const Turn *turn, PyObject *worker, PyObject *request_id, int began,
                       long long served) {
    PyObject *count = PyLong_FromLongLong(served), *now = PyFloat_FromDouble(turn->now);
    PyObject *noted = NULL;
    if (count != NULL && now != NULL) {
        PyObject *args[] = {turn->fold->events, worker, began ? Py_True : Py_False, count, now,
                            request_id};
        noted = PyObject_VectorcallMethod(interned.note_answers, args, 6, NULL);
    }
    XDECREF_ALL(count, now, noted);
    return noted == NULL ? -1 : 0;
}

static void forget_answers(Turn *turn) {
    for (int i = 0; i < turn->count; i++) {
        Py_DECREF(turn->answers[i].worker);
        Py_DECREF(turn->answers[i].request_id);
    }
    turn->count = 0;
}

/* Tell the workers' health what is to be told; -1 with an error set. */
static int report_answers(Turn *turn) {
    int failed = 0;
    for (int i = 0; i < turn->count && !failed; i++) {
        const Answers *one = turn->answers + i;
        failed = report_health(turn, one->worker, one->request_id, one->began, one->served);
    }
    forget_answers(turn);
    return failed;
}

/* Note that an answer began, or was complete; -1 with an error set. */
static int note_answer(Turn *turn, const Booking *booking, int began, int served) {
    PyObject *out = turn->fold->out;
    int spoken = PySet_GET_SIZE(out) ? PySet_Contains(out, booking->worker) : 0;
    if (spoken) {
        return spoken < 0 || report_answers(turn) < 0
                   ? -1
                   : report_health(turn, booking->worker, booking->request_id, began, served);
    }
    int at = turn->count - 1;
    while (at >= 0 && turn->answers[at].worker != booking->worker) {
        at--;
    }
    if (at < 0) {
        TRY_IF(turn->count == TOLD_AT_ONCE, report_answers(turn));
        at = turn->count++;
        turn->answers[at] = (Answers){.worker = Py_NewRef(booking->worker),
                                      .request_id = Py_NewRef(booking->request_id)};
    }
    turn->answers[at].began |= began;
    turn->answers[at].served += served;
    return 0;
}

/* Have a record folded in Python; -1 with an error set. */
static int fold_rare(Turn *turn, const uint8_t *record) {
    TRY(report_answers(turn));
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)record, wire_record_bytes(record));
    PyObject *now = PyFloat_FromDouble(turn->now), *folded = NULL;
    if (bytes != NULL && now != NULL) {
        PyObject *args[] = {turn->fold->events, (PyObject *)turn->peer, bytes, now};
        folded = PyObject_VectorcallMethod(interned.fold_record, args, 4, NULL);
    }
    XDECREF_ALL(bytes, now, folded);
    return folded == NULL ? -1 : 0;
}

/* Return the worker that a peer means by a number, a new reference, where a booking there is no rare
 * thing; NULL, perhaps with an error set.
 */
static PyObject *find_worker(const Turn *turn, uint32_t index) {
    const MessageFold *fold = turn->fold;
    if (PyDict_GET_SIZE(fold->sequences->bookings) >= fold->most_in_all ||
        turn->peer->booked >= fold->most_bookings) {
        return NULL;
    }
    PyObject *key = PyBytes_FromStringAndSize((const char *)&index, sizeof index);
    PyObject *name = key == NULL ? NULL : PyDict_GetItemWithError(turn->peer->workers, key);
    Py_XDECREF(key);
    if (name == NULL || !PyUnicode_CheckExact(name)) {
        return NULL;
    }
    int known = PyDict_Contains(fold->members, name);
    known = known ? known : PyDict_Contains(fold->strangers, name);
    return known > 0 ? Py_NewRef(name) : NULL;
}

/* Return whether events say what a worker caches; -1 with an error set. */
static int is_confirmed(const MessageFold *fold, PyObject *worker) {
    int doubted = PySet_GET_SIZE(fold->distrusted) ? PySet_Contains(fold->distrusted, worker) : 0;
    return doubted < 0 ? -1 : fold->has_index && !doubted;
}

/* Return whether a prompt that the peer sent to a worker just now is not cached there yet; -1 with an error
 * set.
 */
static int is_late(const Turn *turn, PyObject *worker) {
    int confirmed = turn->peer->unconfirmed == Py_None ? is_confirmed(turn->fold, worker) : 0;
    return confirmed < 1 ? confirmed
                         : sequences_late(turn->fold->sequences, turn->fold->late, worker);
}

/* Have a prompt kept back that is not believed cached yet; -1 with an error set. */
static int keep_back(const Turn *turn, Booking *booking, long long blocks) {
    PyObject *count = PyLong_FromLongLong(blocks);
    PyObject *kept = count == NULL
                         ? NULL
                         : PyObject_CallMethodObjArgs(turn->fold->events, interned.keep_back,
                                                      (PyObject *)booking, count, NULL);
    XDECREF_ALL(count, kept);
    return kept == NULL ? -1 : 0;
}

/* Believe a prompt cached at a worker; -1 with an error set. */
static int believe(const Turn *turn, PyObject *worker, const uint64_t *graded, Py_ssize_t count,
                   long long blocks) {
    const MessageFold *fold = turn->fold;
    if (fold->hints == NULL) {
        return 0;
    }
    int confirmed = is_confirmed(fold, worker);
    TRY(confirmed);
    double ttl_s = confirmed ? fold->predict_ttl_s : fold->approx_ttl_s;
    return approx_record_graded(fold->hints, worker, graded, count, blocks, turn->now, ttl_s);
}

/* Write the sharing keys among graded hashes; return how many. */
static Py_ssize_t pick_keys(const uint64_t *graded, Py_ssize_t count, uint32_t blocks,
                            uint64_t *keys) {
    long long placed = graded_count(blocks), number = 1;
    placed = placed < count ? placed : count;
    for (; key_place(number) < placed; number++) {
        keys[number - 1] = graded[key_place(number)];
    }
    return (Py_ssize_t)(number - 1);
}

/* Note that a booking was told, which is new or not; -1 with an error set. */
static int confirm(const Peer *peer, PyObject *request_id, int added) {
    EXPECT(PySet_CheckExact(peer->unconfirmed));
    TRY(PySet_Discard(peer->unconfirmed, request_id));
    return added ? PySet_Add(peer->republished, request_id) : 0;
}

/* End what was booked under the same number before and failed, where that was not heard; -1 with an
 * error set.
 */
static int end_other(Turn *turn, const DemandC *demand, PyObject *worker, PyObject *request_id) {
    Sequences *sequences = turn->fold->sequences;
    Booking *booking = (Booking *)Py_XNewRef(sequences_find(sequences, request_id));
    if (booking == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    long long uncached = within(0, demand->uncached_tokens, demand->prompt_tokens);
    int failed = 0;
    if (PyUnicode_Compare(booking->owner, turn->peer->name) == 0 &&
        (booking->prompt_tokens != demand->prompt_tokens || booking->uncached_tokens != uncached ||
         PyUnicode_Compare(booking->worker, worker) != 0)) {
        failed = sequences_finish(sequences, booking);
    }
    Py_DECREF(booking);
    return failed < 0 ? -1 : 0;
}

/* Book a request at a worker as the peer did; -1 with an error set. */
static int book(Turn *turn, const uint8_t *record, PyObject *worker, PyObject *request_id) {
    MessageFold *fold = turn->fold;
    uint64_t graded[MOST_GRADED], keys[MOST_GRADED];
    Py_ssize_t count = (Py_ssize_t)read_u16(record + 2);
    uint32_t number = read_u32(record + 4), blocks = read_u32(record + 12);
    for (Py_ssize_t i = 0; i < count; i++) {
        graded[i] = read_u64(record + PLACED_BYTES + 8 * i);
    }
    DemandC demand = {
        .prompt_tokens = read_u32(record + 16),
        .uncached_tokens = read_u32(record + 20),
        .expected_output_tokens = read_u32(record + 24) * fold->sequences->block_size,
        .keys = {.hashes = keys, .count = pick_keys(graded, count, blocks, keys), .are_keys = 1},
        .owner = turn->peer->name,
        .streams = record[1] & PLACED_STREAMS,
        .turn = (record[1] & PLACED_TURN) != 0,
    };
    TRY(end_other(turn, &demand, worker, request_id));
    int believed = record[1] & PLACED_BELIEVED && count;
    int late = believed ? is_late(turn, worker) : 0;
    TRY(late);
    if (believed) {
        demand.hashes = PyBytes_FromStringAndSize((const char *)record + PLACED_BYTES, 8 * count);
        NEED(demand.hashes);
    }
    Booking *booking = sequences_book(fold->sequences, request_id, worker, &demand, turn->now);
    Py_XDECREF(demand.hashes);
    if (booking == NULL && PyErr_Occurred()) {
        return -1;
    }
    int added = booking != NULL;
    int failed = added && peer_keep(turn->peer, number, booking) < 0;
    if (added && believed && !failed) {
        failed = (late ? keep_back(turn, booking, blocks)
                       : believe(turn, worker, graded, count, blocks)) < 0;
    }
    Py_XDECREF(booking);
    turn->peer->booked += added;
    return failed ? -1 : confirm(turn->peer, request_id, added);
}

static int fold_placed(Turn *turn, const uint8_t *record) {
    PyObject *worker = find_worker(turn, read_u32(record + 8));
    if (worker == NULL) {
        return PyErr_Occurred() ? -1 : fold_rare(turn, record);
    }
    PyObject *request_id = peer_request_id(turn->peer, read_u32(record + 4));
    int failed = request_id == NULL ? -1 : book(turn, record, worker, request_id);
    Py_XDECREF(request_id);
    Py_DECREF(worker);
    return failed;
}

/* Forget that a booking came with a state: there is none any more; -1 with an error set. */
static int forget_republished(const Peer *peer, uint32_t number) {
    if (PySet_GET_SIZE(peer->republished) == 0) {
        return 0;
    }
    PyObject *request_id = peer_request_id(peer, number);
    int failed = request_id == NULL || PySet_Discard(peer->republished, request_id) < 0;
    Py_XDECREF(request_id);
    return failed ? -1 : 0;
}

/* Tell of a first token, or of the end, of an answer who keeps prompts back; -1 with an error set. */
static int end_late(const Turn *turn, Booking *booking, PyObject *ended) {
    int late = PyDict_GET_SIZE(turn->fold->late)
                   ? PyDict_Contains(turn->fold->late, booking->worker)
                   : 0;
    PyObject *now = late > 0 ? PyFloat_FromDouble(turn->now) : NULL;
    if (now == NULL) {
        return late ? -1 : 0;
    }
    PyObject *noted = PyObject_CallMethodObjArgs(turn->fold->events, interned.end_late,
                                                 (PyObject *)booking, ended, now, NULL);
    XDECREF_ALL(now, noted);
    return noted == NULL ? -1 : 0;
}

static int begin_answer(Turn *turn, Booking *booking) {
    EXPECT(sequences_first_token(turn->fold->sequences, booking, turn->now));
    WorkerSpeed *known = speeds_worker(turn->fold->speeds, booking->worker);
    NEED(known);
    speeds_first_token(turn->fold->speeds, known, booking->service_tokens, booking->service_s,
                       turn->now);
    TRY(end_late(turn, booking, Py_False));
    return note_answer(turn, booking, 1, 0);
}

static int grow_answer(Turn *turn, Booking *booking, long long tokens) {
    if (!booking->prefilling) {
        WorkerSpeed *known = speeds_worker(turn->fold->speeds, booking->worker);
        NEED(known);
        speeds_output(turn->fold->speeds, known, tokens - booking->output_tokens,
                      turn->now - booking->output_s);
    }
    sequences_grow(turn->fold->sequences, booking, tokens, turn->now);
    return 0;
}

static int end_answer(Turn *turn, Booking *booking, uint32_t number) {
    peer_drop(turn->peer, number);
    TRY(sequences_finish(turn->fold->sequences, booking));
    if (!(booking->prefilling && booking->streams)) {
        WorkerSpeed *known = speeds_worker(turn->fold->speeds, booking->worker);
        NEED(known);
        speeds_finished(turn->fold->speeds, known, turn->now - booking->booked_s,
                        booking->output_tokens);
    }
    TRY(end_late(turn, booking, Py_True));
    return note_answer(turn, booking, 0, 1);
}

/* Fold what became of a booking that came with a state: its times teach no speeds. */
static int follow(Turn *turn, const uint8_t *record, Booking *booking, uint32_t number) {
    Sequences *sequences = turn->fold->sequences;
    if (record[0] == RECORD_PREFILLED) {
        sequences_first_token(sequences, booking, turn->now);
        return 0;
    }
    if (record[0] == RECORD_GREW) {
        sequences_grow(sequences, booking, (long long)read_u64(record + 8), turn->now);
        return 0;
    }
    peer_drop(turn->peer, number);
    TRY(PySet_Discard(turn->peer->republished, booking->request_id));
    TRY(sequences_finish(sequences, booking));
    return note_answer(turn, booking, 0, 1);
}

/* Fold what became of a booking; -1 with an error set. */
static int fold_progress(Turn *turn, const uint8_t *record) {
    uint32_t number = read_u32(record + 4);
    Booking *booking = peer_find(turn->peer, turn->fold->sequences, number);
    if (booking == NULL) {
        return PyErr_Occurred() ? -1 : forget_republished(turn->peer, number);
    }
    PyObject *republished = turn->peer->republished;
    int failed = PySet_GET_SIZE(republished) ? PySet_Contains(republished, booking->request_id) : 0;
    if (failed > 0) {
        failed = follow(turn, record, booking, number);
    } else if (failed == 0) {
        failed = record[0] == RECORD_PREFILLED ? begin_answer(turn, booking)
                 : record[0] == RECORD_GREW
                     ? grow_answer(turn, booking, (long long)read_u64(record + 8))
                     : end_answer(turn, booking, number);
    }
    Py_DECREF(booking);
    return failed;
}

/* Expect all of the peer's bookings to be told; -1 with an error set. */
static int begin_state(const Turn *turn) {
    Peer *peer = turn->peer;
    PyObject *expected = PySet_New(NULL), *key, *value;
    Py_ssize_t place = 0;
    int failed = expected == NULL;
    while (!failed && PyDict_Next(turn->fold->sequences->bookings, &place, &key, &value)) {
        if (!Py_IS_TYPE(value, &booking_type)) {
            continue;
        }
        const Booking *booking = (Booking *)value;
        if (booking->owner == peer->name || PyUnicode_Compare(booking->owner, peer->name) == 0) {
            failed = PySet_Add(expected, booking->request_id) < 0;
        }
    }
    if (failed) {
        Py_XDECREF(expected);
        return -1;
    }
    Py_SETREF(peer->unconfirmed, expected);
    return 0;
}

static int fold_record(Turn *turn, const uint8_t *record) {
    switch (record[0]) {
    case RECORD_PLACED:
        return fold_placed(turn, record);
    case RECORD_PREFILLED:
    case RECORD_GREW:
    case RECORD_ENDED:
        return fold_progress(turn, record);
    case RECORD_STATE_BEGINS:
        return begin_state(turn);
    case RECORD_FAILED:
        peer_drop(turn->peer, read_u32(record + 4));
        return fold_rare(turn, record);
    default:
        return fold_rare(turn, record);
    }
}

static int receive_shares(const Turn *turn, const uint8_t *data, Py_ssize_t size) {
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)data, size);
    PyObject *hints = bytes == NULL ? NULL
                                    : PyObject_CallMethodObjArgs(turn->fold->events, interned.receive_shares,
                                                                 turn->peer, bytes, NULL);
    XDECREF_ALL(bytes, hints);
    return hints == NULL ? -1 : 0;
}

/* Fold the records of a message that were not heard before; -1 with an error set. */
static int fold_records(Turn *turn, const uint8_t *data, const WireHead *head) {
    const uint8_t *record = data + HEAD_BYTES;
    long long known = turn->peer->next_seq - head->first_seq;
    for (long long i = 0; i < head->events; i++) {
        if (i >= known) {
            turn->fold->applied++;
            TRY(fold_record(turn, record));
        }
        record += wire_record_bytes(record);
    }
    return report_answers(turn);
}

static int fold_message(Turn *turn, const uint8_t *data, Py_ssize_t size, const WireHead *head) {
    Peer *peer = turn->peer;
    TRY_IF(head->shares, receive_shares(turn, data + head->end, size - head->end));
    if (head->first_seq > peer->next_seq) {
        turn->fold->gaps++;
        peer->complete = 0;
        Py_SETREF(peer->unconfirmed, Py_NewRef(Py_None));
    }
    TRY(fold_records(turn, data, head));
    long long next_seq = head->first_seq + head->events;
    peer->next_seq = next_seq > peer->next_seq ? next_seq : peer->next_seq;
    if (turn->now >= peer->renewed_s + RENEW_S) {
        peer->renewed_s = turn->now;
        sequences_renew_owner(turn->fold->sequences, peer->name, turn->now);
    }
    return 0;
}

/* fold(peer, data, now) -> whether the peer is known completely; None: it is to be folded otherwise */
static PyObject *call_fold(MessageFold *self, ARGUMENTS) {
    Turn turn = {.fold = self};
    PyObject *message;
    TRY_OR_NULL(READ_PLACED("fold", "!Sd", "peer data now", &peer_type, &turn.peer, &message,
                            &turn.now));
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(message);
    Py_ssize_t size = PyBytes_GET_SIZE(message);
    WireHead head;
    if (!wire_check(data, size, &head) || head.epoch != turn.peer->epoch) {
        Py_RETURN_NONE;
    }
    if (fold_message(&turn, data, size, &head) < 0) {
        forget_answers(&turn);
        return NULL;
    }
    return PyBool_FromLong(turn.peer->complete);
}

static PyObject *fold_new(NEW_ARGUMENTS) {
    PyObject *hints, *ttls, *limits;
    MessageFold *self = (MessageFold *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    if (READ_NEW("MessageFold", "$+O+!+!O+D+D+!+!+DTpT",
                 "events sequences speeds hints members strangers out distrusted late ttls has_index limits",
                 &self->events, &sequences_type, &self->sequences, &speeds_type, &self->speeds,
                 &hints, &self->members, &self->strangers, &PySet_Type, &self->out, &PySet_Type,
                 &self->distrusted, &self->late, &ttls, &self->has_index, &limits) < 0 ||
        !PyArg_ParseTuple(ttls, "dd", &self->predict_ttl_s, &self->approx_ttl_s) ||
        !PyArg_ParseTuple(limits, "nn", &self->most_bookings, &self->most_in_all)) {
        Py_CLEAR(self);
    } else if (hints != Py_None && (!Py_IS_TYPE(hints, &approx_type) ||
                                    ((Approx *)hints)->keeps != KEEP_GRADED)) {
        PyErr_SetString(PyExc_TypeError, "what is heard is believed in a graded Approx, or None");
        Py_CLEAR(self);
    } else if (hints != Py_None) {
        self->hints = (Approx *)Py_NewRef(hints);
    }
    return (PyObject *)self;
}

TRAVERSE(MessageFold, fold, events, sequences, hints, members, strangers, out, distrusted, late)

/* Nothing becomes NULL: who still holds it may go on. */
static int fold_clear(MessageFold *self) {
    Py_SETREF(self->events, Py_NewRef(Py_None));
    return 0;
}

GC_DEALLOC(MessageFold, fold, events, sequences, speeds, hints, members, strangers, out, distrusted, late)

MEMBERS(members, FIELDS(MessageFold, T_LONGLONG, READONLY, applied, gaps))

METHODS(methods, METHOD_FASTCALL("fold", call_fold))

PyTypeObject message_fold_type = {
    GC_TYPE("MessageFold", MessageFold, fold),
    .tp_clear = (inquiry)fold_clear,
    .tp_members = members, .tp_methods = methods,
};
