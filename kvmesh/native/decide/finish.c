/* What becomes of a request that was decided: its tokens, and its end. */
#include "decide/decide.h"

/* Tell core.health.health.Health by one of its methods; 1 or 0 as it answers, -1 with an error. */
static int ask_health(const Decider *self, const char *method, PyObject *worker, double now) {
    PyObject *answer = PyObject_CallMethod(self->health, method, "Od", worker, now);
    int truth = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return truth;
}

/* Believe what a booking was expected to cache from its service on, where no events confirm it: what
 * was believed since it was sent may have been revoked with another request, or be over. 0, -1 with an
 * error set. */
static int believe_served(Decider *self, PyObject *worker, PyObject *expected, double now) {
    if (expected == NULL || self->believed[ROUTED] == NULL || !Py_IS_TYPE(expected, &hashed_type)) {
        return 0;
    }
    int confirmed = decider_confirms(self, worker);
    if (confirmed) {
        return confirmed < 0 ? -1 : 0;
    }
    const Hashed *hashes = (const Hashed *)expected;
    return approx_record(self->believed[ROUTED], worker, hashes->at, Py_SIZE(hashes), now,
                         self->approx_ttl_s);
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

static int begin_answer(Decider *self, Placed *placed, double now) {
    Booking *booking = placed->booking;
    placed->waiting = 0;
    Py_CLEAR(placed->hashes); /* a stream may be long, and 100 KB of prompt have 50 KB of hashes */
    PyObject *expected = booking == NULL ? NULL : Py_XNewRef(booking->hashes);
    int first = booking == NULL ? 0 : sequences_first_token(self->sequences, booking, now);
    if (first > 0 && believe_served(self, booking->worker, expected, now) < 0) {
        first = -1;
    }
    Py_XDECREF(expected);
    if (first < 0) {
        return -1;
    }
    ring_first_token(self->ring, placed->record, now);
    if (self->outbox != NULL) {
        outbox_first_token(self->outbox, placed->request_id);
    }
    int learned = placed->inputs == NULL ? 0 : ask_begun(self, placed, first, now);
    if (learned < 0 || !first) {
        return learned < 0 ? -1 : 0;
    }
    WorkerSpeed *known = speeds_worker(self->speeds, booking->worker);
    if (known == NULL) {
        return -1;
    }
    if (!learned) {
        speeds_first_token(self->speeds, known, booking->service_tokens, booking->service_s, now);
    }
    if (PyDict_GET_SIZE(self->late_waiting)) {
        PyObject *begun = PyObject_CallMethod(self->late, "begin", "Od", booking->worker, now);
        Py_XDECREF(begun);
        if (begun == NULL) {
            return -1;
        }
    }
    return ask_health(self, "began", booking->worker, now) < 0 ? -1 : 0;
}

static int grow_answer(Decider *self, Booking *booking, long long tokens, double now) {
    WorkerSpeed *known = speeds_worker(self->speeds, booking->worker);
    if (known == NULL) {
        return -1;
    }
    if (!booking->prefilling) {
        speeds_output(self->speeds, known, tokens - booking->output_tokens, now - booking->output_s);
    }
    sequences_grow(self->sequences, booking, tokens, now);
    return 0;
}

static Placed *read_placed(const Decider *self, PyObject *given, PyObject *when, double *now) {
    if (self->ring == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "the decider has no log yet");
        return NULL;
    }
    *now = 0.0;
    if (!Py_IS_TYPE(given, &placed_type)) {
        PyErr_Format(PyExc_TypeError, "a Placed, not %.100s", Py_TYPE(given)->tp_name);
        return NULL;
    }
    *now = PyFloat_AsDouble(when);
    return PyErr_Occurred() ? NULL : (Placed *)given;
}

/* seen(placed, tokens, now) -> whether it was the first */
PyObject *decider_seen(Decider *self, PyObject *const *args, Py_ssize_t nargs) {
    double now = 0.0;
    if (nargs != 3) {
        return PyErr_Format(PyExc_TypeError, "seen takes 3 arguments, not %zd", nargs);
    }
    Placed *placed = read_placed(self, args[0], args[2], &now);
    long long tokens;
    if (placed == NULL || read_amount(args[1], &tokens) < 0) {
        return NULL;
    }
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

/* core.routing.scheduler.Scheduler.prefilled_s of one whose worker's prefill moved at `progress_s`. */
static double prefilled_s(const Speeds *speeds, const WorkerSpeed *known, const Booking *booking,
                          double progress_s) {
    if (!booking->prefilling) {
        return booking->output_s;
    }
    double began_s = booking->booked_s > progress_s ? booking->booked_s : progress_s;
    double ms_per_token = speeds_ms_per_token(speeds, known);
    return began_s + OVERDUE * ms_per_token / 1000.0 * (double)booking->uncached_tokens;
}

/* Release the booking of what was served, and learn from it: core.routing.scheduler.Scheduler. */
static int release(Decider *self, Placed *placed, Booking *booking, double now) {
    Record *record = placed->record;
    long long output = booking->output_tokens;
    double progress_s = booking->loads->progress_s, residence_s = now - booking->booked_s;
    int whole = !(booking->prefilling && booking->streams);
    if (sequences_finish(self->sequences, booking) < 0 ||
        believe_served(self, booking->worker, booking->hashes, now) < 0) {
        return -1;
    }
    record->output_tokens = output;
    WorkerSpeed *known = speeds_worker(self->speeds, booking->worker);
    if (known == NULL) {
        return -1;
    }
    if (whole) {
        speeds_finished(self->speeds, known, residence_s, output);
    }
    if (!booking->streams) {
        placed->unseen_s = now - prefilled_s(self->speeds, known, booking, progress_s);
    }
    return ask_health(self, "served", booking->worker, now);
}

/* core.dispatch.dispatch.Dispatch._learn_pace */
static int learn_pace(Decider *self, const Placed *placed, long long tokens, double now) {
    const Record *record = placed->record;
    WorkerSpeed *known = speeds_worker(self->speeds, record->worker);
    if (known == NULL) {
        return -1;
    }
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
    if (lengths_learn(self->lengths, &placed->forecast, tokens) < 0) {
        return -1;
    }
    return learn_pace(self, placed, tokens, now);
}

/* finish(placed, status, usage, now) -> the booking the first time, else None; and whether nothing
 * speaks against the worker
 */
PyObject *decider_finish(Decider *self, PyObject *const *args, Py_ssize_t nargs) {
    double now = 0.0;
    if (nargs != 4) {
        return PyErr_Format(PyExc_TypeError, "finish takes 4 arguments, not %zd", nargs);
    }
    Placed *placed = read_placed(self, args[0], args[3], &now);
    int status = placed == NULL ? 0 : (int)PyLong_AsLong(args[1]);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Record *record = placed->record;
    Booking *booking = placed->booking;
    if (record->state != OPEN) {
        return PyErr_Format(PyExc_RuntimeError, "request %.100U has ended before",
                            placed->request_id);
    }
    if (record_report(record, args[2]) < 0) {
        return NULL;
    }
    if (self->outbox != NULL) {
        outbox_served(self->outbox, placed->request_id);
    }
    /* Only now: the outbox may run anything. */
    int served = 1, live = booking != NULL && booking->loads != NULL;
    if (live && (served = release(self, placed, booking, now)) < 0) {
        return NULL;
    }
    ring_ended(self->ring, record, FINISHED, status, now);
    if (totals_ended(self->totals, record) < 0 || learn(self, placed, now) < 0) {
        return NULL;
    }
    tokens_served(self->counts, placed->prompt_tokens, record->usage_prompt,
                  record->chosen.overlap_blocks * record->block_size,
                  record->has_usage ? record->usage_cached : UNKNOWN);
    return Py_BuildValue("ON", live ? (PyObject *)booking : Py_None, PyBool_FromLong(served));
}
