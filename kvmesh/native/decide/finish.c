/* What becomes of a request that was decided: its tokens, and its end. */
#include "decide/decide.h"

/* Tell core.members.health.Health by one of its methods; 1 or 0 as it answers, -1 with an error. */
static int ask_health(const Decider *self, const char *method, PyObject *worker, double now) {
    PyObject *answer = PyObject_CallMethod(self->health, method, "Od", worker, now);
    int truth = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return truth;
}

/* Believe what a booking was expected to cache from its service on, where no events confirm it: what
 * was believed since it was sent may have been revoked with another request, or be over. 0, -1 with an
 * error set. */
static int believe_served(Decider *self, const Booking *booking, PyObject *expected, double now) {
    PyObject *worker = booking->worker;
    if (expected == NULL || self->believed[ROUTED] == NULL || !Py_IS_TYPE(expected, &hashed_type)) {
        return 0;
    }
    int confirmed = decider_confirms(self, worker);
    if (confirmed) {
        return confirmed < 0 ? -1 : 0;
    }
    int slots = approx_has_slots(self->believed[ROUTED], worker);
    if (slots) { /* prompts that were sent since then come after it */
        return slots < 0 ? -1 : 0;
    }
    const Hashed *hashes = (const Hashed *)expected;
    return approx_record(self->believed[ROUTED], worker, hashes->at, Py_SIZE(hashes), now,
                         self->approx_ttl_s, booking->keep_s);
}

/* Tell of a first token, the booking's if it is `first`; 1 if its time says nothing of the worker's
 * speed, 0 if it does, -1 with an error set.
 */
static int ask_begun(const Decider *self, Placed *placed, int first, double now) {
    PyObject *answer = PyObject_CallFunction(self->begun, "Oid", placed, first, now);
    int truth = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return truth;
}

/* Take the first token of a booking; 1 if it is, 0 if none was waited for, -1 with an error set. */
static int begin(Decider *self, Booking *booking, double now) {
    PyObject *expected = Py_XNewRef(booking->hashes);
    int first = sequences_first_token(self->sequences, booking, now);
    if (first > 0 && (believe_served(self, booking, expected, now) < 0 ||
                      ask_health(self, "began", booking->worker, now) < 0)) {
        first = -1;
    }
    Py_XDECREF(expected);
    if (first > 0 && PyDict_GET_SIZE(self->late_waiting)) {
        PyObject *begun = PyObject_CallMethod(self->late, "begin", "Od", booking->worker, now);
        Py_XDECREF(begun);
        first = begun == NULL ? -1 : first;
    }
    return first;
}

static int begin_answer(Decider *self, Placed *placed, double now) {
    Booking *booking = placed->booking;
    placed->waiting = 0;
    Py_CLEAR(placed->hashes); /* a stream may be long, and 100 KB of prompt have 50 KB of hashes */
    int first = booking == NULL ? 0 : begin(self, booking, now);
    TRY(first);
    ring_first_token(self->ring, placed->record, now);
    if (self->outbox != NULL) {
        outbox_first_token(self->outbox, placed->request_id);
    }
    int learned = placed->inputs == NULL ? 0 : ask_begun(self, placed, first, now);
    if (learned < 0 || !first || learned) {
        return learned < 0 ? -1 : 0;
    }
    WorkerSpeed *known = speeds_worker(self->speeds, booking->worker);
    NEED(known);
    speeds_first_token(self->speeds, known, booking->service_tokens, booking->service_s, now);
    return 0;
}

/* Take so many tokens of an answer. */
static int grow_answer(Decider *self, Booking *booking, long long tokens, double now) {
    WorkerSpeed *known = speeds_worker(self->speeds, booking->worker);
    NEED(known);
    if (!booking->prefilling) {
        speeds_output(self->speeds, known, tokens - booking->output_tokens, now - booking->output_s);
    }
    sequences_grow(self->sequences, booking, tokens, now);
    return 0;
}

static Placed *read_placed(const Decider *self, PyObject *given, PyObject *when, double *now) {
    REFUSE_OR_NULL(self->ring == NULL, PyExc_RuntimeError, "the decider has no log yet");
    *now = 0.0;
    REFUSE_OR_NULL(!Py_IS_TYPE(given, &placed_type), PyExc_TypeError, "a Placed, not %.100s",
                   Py_TYPE(given)->tp_name);
    *now = PyFloat_AsDouble(when);
    return PyErr_Occurred() ? NULL : (Placed *)given;
}

/* seen(placed, tokens, now) -> whether it was the first */
PyObject *decider_seen(Decider *self, ARGUMENTS) {
    double now = 0.0;
    REFUSE_OR_NULL(nargs != 3, PyExc_TypeError, "seen takes 3 arguments, not %zd", nargs);
    Placed *placed = read_placed(self, args[0], args[2], &now);
    long long tokens;
    NEED_OR_NULL(placed);
    TRY_OR_NULL(read_amount(args[1], &tokens));
    int first = placed->waiting;
    if (first && begin_answer(self, placed, now) < 0) {
        return NULL;
    }
    Booking *booking = placed->booking;
    if (tokens > 1 && booking != NULL && booking->loads != NULL &&
        grow_answer(self, booking, tokens, now) < 0) {
        return NULL;
    }
    return PyBool_FromLong(first);
}

/* Write when the prefill of a booking that was released is taken to have ended: of whole answers nobody
 * sees that, it ends in its time, whether it was looked at or not. -1 with an error set.
 */
static int prefilled_s(Decider *self, const Booking *booking, double *when) {
    *when = booking->output_s;
    if (!booking->prefilling) {
        return 0;
    }
    const WorkerSpeed *known = speeds_worker(self->speeds, booking->worker);
    const Loads *loads = known == NULL ? NULL : sequences_loads(self->sequences, booking->worker);
    NEED(loads);
    double began_s = booking->booked_s > loads->progress_s ? booking->booked_s : loads->progress_s;
    double ms_per_token = speeds_ms_per_token(self->speeds, known);
    *when = began_s + OVERDUE * ms_per_token / 1000.0 * (double)booking->uncached_tokens;
    return 0;
}

/* Release a booking; of what was `served` it is learned how long that took, and what was expected to be
 * cached is believed from now on. 1, 0 for one that was not live, -1 with an error set.
 */
static int release(Decider *self, Booking *booking, int served, double now) {
    int live = sequences_finish(self->sequences, booking);
    if (live < 1) {
        return live;
    }
    TRY_IF(booking->taken && self->believed[ROUTED] != NULL,
           approx_leave(self->believed[ROUTED], booking->worker, booking->taken, now));
    TRY_IF(served, believe_served(self, booking, booking->hashes, now));
    if (PyDict_GET_SIZE(self->late_waiting)) {
        PyObject *ended = PyObject_CallMethod(self->late, "end", "Odi", booking, now, served);
        Py_XDECREF(ended);
        NEED(ended);
    }
    if (served && !(booking->prefilling && booking->streams)) {
        WorkerSpeed *known = speeds_worker(self->speeds, booking->worker);
        NEED(known);
        speeds_finished(self->speeds, known, now - booking->booked_s, booking->output_tokens);
    }
    return 1;
}

/* Read the name of a booking and a time behind `count - 2` other arguments; the booking, held, NULL without
 * an error where there is none.
 */
static Booking *read_booking(Decider *self, PyObject *const *args, Py_ssize_t nargs, Py_ssize_t count,
                             double *now) {
    REFUSE_OR_NULL(nargs != count || !PyUnicode_Check(args[0]), PyExc_TypeError,
                   "%zd arguments, the first a request's name, not %zd", count, nargs);
    *now = PyFloat_AsDouble(args[count - 1]);
    TRY_OR_NULL(no_error());
    return (Booking *)Py_XNewRef((PyObject *)sequences_find(self->sequences, args[0]));
}

static PyObject *none_unless_failed(void) {
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* begin(request_id, now) -> the booking, if it is its first token; its time is not learned from */
PyObject *decider_begin(Decider *self, ARGUMENTS) {
    double now;
    Booking *booking = read_booking(self, args, nargs, 2, &now);
    if (booking != NULL && begin(self, booking, now) < 1) {
        Py_CLEAR(booking);
    }
    return booking == NULL ? none_unless_failed() : (PyObject *)booking;
}

/* grow(request_id, tokens, now) */
PyObject *decider_grow(Decider *self, ARGUMENTS) {
    double now;
    long long tokens;
    Booking *booking = read_booking(self, args, nargs, 3, &now);
    if (booking != NULL && read_amount(args[1], &tokens) == 0) {
        grow_answer(self, booking, tokens, now);
    }
    Py_XDECREF(booking);
    return none_unless_failed();
}

/* release(request_id, served, now) -> the booking, None: it was not live */
PyObject *decider_release(Decider *self, ARGUMENTS) {
    double now;
    Booking *booking = read_booking(self, args, nargs, 3, &now);
    int served = booking == NULL ? 0 : PyObject_IsTrue(args[1]);
    if (booking != NULL && (served < 0 || release(self, booking, served, now) < 1)) {
        Py_CLEAR(booking);
    }
    return booking == NULL ? none_unless_failed() : (PyObject *)booking;
}

PyObject *decider_prefilled_s(Decider *self, PyObject *given) {
    double when;
    REFUSE_OR_NULL(!Py_IS_TYPE(given, &booking_type), PyExc_TypeError, "a Booking, not %.100s",
                   Py_TYPE(given)->tp_name);
    return prefilled_s(self, (Booking *)given, &when) < 0 ? NULL : PyFloat_FromDouble(when);
}

/* Release the booking of a request that was decided here, once; -1 with an error set. */
static int release_placed(Decider *self, Placed *placed, int served, double now) {
    Booking *booking = placed->booking;
    int live = release(self, booking, served, now);
    if (live < 1) {
        return live;
    }
    placed->record->output_tokens = booking->output_tokens;
    if (!booking->streams) {
        double since_s;
        TRY(prefilled_s(self, booking, &since_s));
        placed->unseen_s = now - since_s;
    }
    return 1;
}

/* Learn how long the worker of a request takes for answers. */
static int learn_pace(Decider *self, const Placed *placed, long long tokens, double now) {
    const Record *record = placed->record;
    WorkerSpeed *known = speeds_worker(self->speeds, record->worker);
    NEED(known);
    if (!placed->streams) {
        if (tokens && placed->unseen_s > 0.0) {
            speeds_output(self->speeds, known, tokens, placed->unseen_s);
            speeds_answered(self->speeds, known, tokens, placed->unseen_s);
        }
    } else if (tokens > 1 && !isnan(record->first_token_s)) {
        speeds_answered(self->speeds, known, tokens - 1, now - record->first_token_s);
    }
    return 0;
}

static int learn(Decider *self, Placed *placed, double now) {
    const Record *record = placed->record;
    long long tokens = record->has_usage && record->usage_completion ? record->usage_completion
                                                                     : record->output_tokens;
    if (!tokens) {
        return 0;
    }
    TRY(lengths_learn(self->lengths, &placed->forecast, tokens));
    return learn_pace(self, placed, tokens, now);
}

/* free(placed, served, now) -> its booking, None: it was not live */
PyObject *decider_free(Decider *self, ARGUMENTS) {
    double now = 0.0;
    REFUSE_OR_NULL(nargs != 3, PyExc_TypeError, "free takes 3 arguments, not %zd", nargs);
    Placed *placed = read_placed(self, args[0], args[2], &now);
    int served = placed == NULL ? -1 : PyObject_IsTrue(args[1]);
    TRY_OR_NULL(served);
    int live = placed->booking != NULL && placed->booking->loads != NULL;
    if (live && release_placed(self, placed, served, now) < 0) {
        return NULL;
    }
    return Py_NewRef(live ? (PyObject *)placed->booking : Py_None);
}

/* finish(placed, served, state, status, usage, now) -> the booking of what was `served`, else None; and
 * whether nothing speaks against the worker
 */
PyObject *decider_finish(Decider *self, ARGUMENTS) {
    double now = 0.0;
    REFUSE_OR_NULL(nargs != 6, PyExc_TypeError, "finish takes 6 arguments, not %zd", nargs);
    Placed *placed = read_placed(self, args[0], args[5], &now);
    int served = placed == NULL ? 0 : PyObject_IsTrue(args[1]);
    int state = PyErr_Occurred() ? -1 : state_from(args[2]);
    int status = state < 0 ? 0 : (int)PyLong_AsLong(args[3]);
    TRY_OR_NULL(no_error());
    Record *record = placed->record;
    Booking *booking = placed->booking;
    REFUSE_OR_NULL(record->state != OPEN, PyExc_RuntimeError, "request %.100U has ended before",
                   placed->request_id);
    TRY_OR_NULL(record_report(record, args[4]));
    if (served && self->outbox != NULL) {
        outbox_served(self->outbox, placed->request_id);
    }
    /* Only now: the outbox may run anything. */
    int well = 1, live = served && booking != NULL && booking->loads != NULL;
    if (live && (release_placed(self, placed, 1, now) < 0 ||
                 (well = ask_health(self, "served", booking->worker, now)) < 0)) {
        return NULL;
    }
    ring_ended(self->ring, record, state, status, now);
    /* Of a prompt that was computed elsewhere the engine that decodes says nothing. */
    int told = record->has_usage && record->usage_cached != UNKNOWN && !placed->prefilled;
    if (totals_ended(self->totals, self->counts, record, told) < 0 ||
        (served && learn(self, placed, now) < 0)) {
        return NULL;
    }
    return Py_BuildValue("ON", live ? (PyObject *)booking : Py_None, PyBool_FromLong(well));
}
