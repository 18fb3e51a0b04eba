/* What becomes of a request that was decided: its tokens, and its end. */
#include "decide.h"

/* Tell core.health.health.Health by one of its methods; 1 or 0 as it answers, -1 with an error. */
static int ask_health(const Decider *self, const char *method, PyObject *worker, double now) {
    PyObject *answer = PyObject_CallMethod(self->health, method, "Od", worker, now);
    int truth = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return truth;
}

static int begin_answer(Decider *self, Placed *placed, double now) {
    Booking *booking = placed->booking;
    placed->waiting = 0;
    Py_CLEAR(placed->hashes); /* a stream may be long, and 100 KB of prompt have 50 KB of hashes */
    int first = booking == NULL ? 0 : sequences_first_token(self->sequences, booking, now);
    if (first < 0) {
        return -1;
    }
    ring_first_token(self->ring, placed->record, now);
    if (self->outbox != NULL) {
        outbox_first_token(self->outbox, placed->request_id);
    }
    if (!first) {
        return 0;
    }
    WorkerSpeed *known = speeds_worker(self->speeds, booking->worker);
    if (known == NULL) {
        return -1;
    }
    speeds_first_token(self->speeds, known, booking->service_tokens, booking->service_s, now);
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

static Placed *read_placed(PyObject *given, PyObject *when, double *now) {
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
    Placed *placed = read_placed(args[0], args[2], &now);
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

/* Release the booking of what was served, and learn from it: core.routing.scheduler.Scheduler. */
static int release(Decider *self, Placed *placed, Booking *booking, double now) {
    Record *record = placed->record;
    long long output = booking->output_tokens;
    int unseen = !booking->streams && !booking->prefilling;
    double residence_s = now - booking->booked_s;
    int whole = !(booking->prefilling && booking->streams);
    placed->unseen_s = unseen ? now - booking->output_s : 0.0;
    if (sequences_finish(self->sequences, booking) < 0) {
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
    return ask_health(self, "served", booking->worker, now);
}

static int learn(Decider *self, Placed *placed) {
    const Record *record = placed->record;
    long long tokens = record->has_usage && record->usage_completion ? record->usage_completion
                                                                     : record->output_tokens;
    if (!tokens) {
        return 0;
    }
    if (lengths_learn(self->lengths, &placed->forecast, tokens) < 0) {
        return -1;
    }
    if (placed->unseen_s == 0.0) {
        return 0;
    }
    PyObject *learned = PyObject_CallMethod(self->unseen, "learn", "OLd", record->worker, tokens,
                                            placed->unseen_s);
    Py_XDECREF(learned);
    return learned == NULL ? -1 : 0;
}

/* finish(placed, status, usage, now) -> the booking the first time, else None; and whether nothing
 * speaks against the worker
 */
PyObject *decider_finish(Decider *self, PyObject *const *args, Py_ssize_t nargs) {
    double now = 0.0;
    if (nargs != 4) {
        return PyErr_Format(PyExc_TypeError, "finish takes 4 arguments, not %zd", nargs);
    }
    Placed *placed = read_placed(args[0], args[3], &now);
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
    if (totals_ended(self->totals, record) < 0 || learn(self, placed) < 0) {
        return NULL;
    }
    tokens_served(self->counts, placed->prompt_tokens, record->usage_prompt,
                  record->chosen.overlap_blocks * record->block_size,
                  record->has_usage ? record->usage_cached : UNKNOWN);
    return Py_BuildValue("ON", live ? (PyObject *)booking : Py_None, PyBool_FromLong(served));
}
