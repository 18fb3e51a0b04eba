/* What was chosen is booked, and recorded. */
#include "base/arguments.h"
#include "base/names.h"
#include "decide/decide.h"

#include <math.h>
#include <string.h>

int decider_confirms(const Decider *self, PyObject *worker) {
    if (self->index == NULL) {
        return 0;
    }
    int doubted = PySet_GET_SIZE(self->distrusted) ? PySet_Contains(self->distrusted, worker) : 0;
    return doubted < 0 ? -1 : !doubted;
}

/* Have a prompt kept back that is not believed cached yet; -1 with an error set. */
static int keep_back(const Decider *self, const Placed *placed) {
    if (!placed->late || placed->booking == NULL) {
        return 0;
    }
    PyObject *kept = PyObject_CallMethod(self->late, "add", "O", placed->booking);
    Py_XDECREF(kept);
    return kept == NULL ? -1 : 0;
}

static int report_health(const Decider *self, const Placed *placed, double now) {
    EXPECT(PySet_GET_SIZE(self->out));
    PyObject *answer = PyObject_CallMethod(self->health, "chosen", "OdO", placed->record->worker, now,
                                         placed->request_id);
    Py_XDECREF(answer);
    return answer == NULL ? -1 : 0;
}

Hashed *hash_all(const Request *request, const Question *question) {
    if (request->hashed != NULL) {
        return (Hashed *)Py_NewRef(request->hashed);
    }
    Hashed *made = hashed_new(question->blocks);
    if (made != NULL) {
        memcpy(made->at, question->hashes, (size_t)question->blocks * sizeof *question->hashes);
    }
    return made;
}

void unbook(Decider *self, Placed *placed) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (placed->booking != NULL && sequences_finish(self->sequences, placed->booking) < 0) {
        PyErr_Clear();
    }
    PyErr_Restore(type, value, trace);
}

/* Return what is kept of a request that is to be booked; NULL with an error set. */
static Placed *make_placed(const Request *request, const Question *question, Record *record) {
    Placed *placed = PyObject_New(Placed, &placed_type);
    NEED_OR_NULL(placed);
    placed->record = (Record *)Py_NewRef(record);
    placed->booking = NULL;
    placed->hashes = NULL;
    placed->model = Py_NewRef(request->model);
    placed->request_id =
        request->name != Py_None
            ? Py_NewRef(request->name)
            : PyUnicode_DecodeLatin1(PyBytes_AS_STRING(request->request_id),
                                     PyBytes_GET_SIZE(request->request_id), NULL);
    placed->forecast = request->forecast;
    placed->prompt_tokens = request->prompt_tokens;
    placed->expected_output_tokens = request->expected;
    placed->choices = request->choices;
    placed->event_tokens = UNKNOWN;
    placed->streams = (char)request->streams;
    placed->prefilled = (char)request->prefilled;
    placed->approximate = (char)request->approximate;
    placed->waiting = 1;
    placed->late = 0;
    placed->sent_s = NAN;
    placed->unseen_s = 0.0;
    placed->taught = NULL;
    placed->before = -INFINITY;
    placed->inputs = Py_XNewRef(request->inputs);
    if (question->blocks) {
        placed->hashes = hash_all(request, question);
    }
    if (placed->request_id == NULL || (question->blocks && placed->hashes == NULL)) {
        Py_CLEAR(placed);
    }
    return placed;
}

/* Return the tokens of a prompt that are computed: not those that loading an adapter costs as much as,
 * which teach nothing of the cache.
 */
static long long computed_tokens(const CandidateTerms *terms) {
    if (!(terms->adapter_ms > 0.0 && terms->ms_per_token > 0.0)) {
        return terms->uncached_tokens;
    }
    double tokens = terms->adapter_ms / terms->ms_per_token;
    return terms->uncached_tokens -
           (tokens >= (double)MOST_TOKENS ? MOST_TOKENS : (long long)tokens);
}

/* Believe a prompt cached at its worker, unless that waits behind others; -1 with an error set. */
static int believe_sent(Decider *self, const Request *request, Placed *placed, DemandC *demand) {
    PyObject *worker = placed->record->worker;
    int confirmed = request->approximate ? 0 : decider_confirms(self, worker);
    double ttl_s = confirmed ? self->predict_ttl_s : self->approx_ttl_s;
    if (confirmed < 0 || placed->hashes == NULL || !self->by->uses_caches ||
        self->believed[ROUTED] == NULL || !(ttl_s > 0.0)) {
        return confirmed < 0 ? -1 : 0;
    }
    demand->hashes = (PyObject *)placed->hashes;
    placed->taught = confirmed ? NULL : (Hashed *)Py_NewRef(placed->hashes);
    /* What no event will confirm is believed from now on or not at all. */
    int late = request->approximate ? 0 : sequences_late(self->sequences, self->late_workers, worker);
    placed->late = late > 0;
    if (late) {
        return late < 0 ? -1 : 0;
    }
    TRY(approx_record(self->believed[ROUTED], worker, placed->hashes->at, Py_SIZE(placed->hashes),
                      request->now, ttl_s, confirmed ? 0.0 : (double)request->keep_s));
    placed->before = self->believed[ROUTED]->before;
    return 0;
}

Placed *book(Decider *self, const Request *request, const Question *question, Record *record) {
    Placed *placed = make_placed(request, question, record);
    NEED_OR_NULL(placed);
    DemandC demand = {
        .prompt_tokens = request->prompt_tokens,
        .uncached_tokens = computed_tokens(&record->chosen),
        .expected_output_tokens = request->expected,
        .keys = {placed->hashes == NULL ? NULL : placed->hashes->at, question->blocks, 0},
        .streams = placed->streams,
        .turn = self->by->mode == MODE_ROUND_ROBIN,
        .keep_s = request->keep_s,
    };
    int failed = believe_sent(self, request, placed, &demand) < 0;
    if (!failed) {
        placed->booking = sequences_book(self->sequences, placed->request_id, record->worker,
                                         &demand, request->now);
        failed = placed->booking == NULL && PyErr_Occurred() != NULL;
    }
    if (placed->booking != NULL && placed->taught != NULL && !placed->late) {
        placed->booking->taken = self->believed[ROUTED]->taken;
    }
    if (failed || report_health(self, placed, request->now) < 0 || keep_back(self, placed) < 0) {
        unbook(self, placed);
        Py_DECREF(placed);
        return NULL;
    }
    home_count(self, question, request->now);
    self->decisions++;
    self->overlap_blocks += record->chosen.overlap_blocks;
    self->request_blocks += record->chosen.request_blocks;
    return placed;
}

int enter(Decider *self, Placed *placed, PyObject *request_id, PyObject *tenant, Record *again,
          double now) {
    if (again != NULL) {
        long long kept = again->kept_candidates;
        record_stand_for(again, placed->record);
        again->output_tokens = 0; /* of the attempt before */
        Py_SETREF(placed->record, (Record *)Py_NewRef(again));
        TRY(ring_again(self->ring, again, kept));
    } else {
        Record *record = placed->record;
        Py_XSETREF(record->request_id, Py_NewRef(request_id));
        Py_XSETREF(record->tenant, PyUnicode_GET_LENGTH(tenant) ? Py_NewRef(tenant) : NULL);
        Py_XSETREF(record->hashes, (Hashed *)Py_XNewRef(placed->hashes));
        record->decided_s = now;
        record->forecast_tokens = placed->forecast.tokens;
        record->forecast_samples = placed->forecast.samples;
        record->forecast_family = placed->forecast.family_tokens;
        TRY(ring_append(self->ring, record));
        TRY(totals_decided(self->totals, now));
    }
    placed->sent_s = now;
    if (self->outbox != NULL && placed->booking != NULL) {
        outbox_placed(self->outbox, placed->booking);
    }
    return 0;
}

/* Read a core.routing.decision.RouteRequest; `request->name` and `model` are owned then, perhaps NULL; -1
 * with an error set.
 */
static int read_route(PyObject *from, Request *request) {
    request->name = PyObject_GetAttr(from, interned.request_id);
    request->model = request->name == NULL ? NULL : PyObject_GetAttr(from, interned.model);
    NEED(request->model);
    REFUSE(!PyUnicode_CheckExact(request->name) || !PyUnicode_CheckExact(request->model),
           PyExc_TypeError, "a request's id and model are strs");
    TRY(read_attribute(from, interned.prompt_tokens, 'N', &request->prompt_tokens));
    TRY(read_attribute(from, interned.expected_output_tokens, 'N', &request->expected));
    TRY(read_attribute(from, interned.choices, 'N', &request->choices));
    TRY(read_attribute(from, interned.streams, 'p', &request->streams));
    TRY(read_attribute(from, interned.keep_s, 'N', &request->keep_s));
    TRY(read_attribute(from, interned.approximate, 'p', &request->approximate));
    return read_attribute(from, interned.prefilled, 'p', &request->prefilled);
}

/* book(record, request, packed hashes, course, inputs, now) -> Placed: what `choose` chose, not recorded */
PyObject *decider_book(Decider *self, ARGUMENTS) {
    REFUSE_OR_NULL(nargs != 6, PyExc_TypeError, "book takes 6 arguments, not %zd", nargs);
    REFUSE_OR_NULL(!Py_IS_TYPE(args[0], &record_type) || !Py_IS_TYPE(args[3], &course_type),
                   PyExc_TypeError, "book takes a Record, a request, packed hashes, a Course, "
                   "inputs or None, a time");
    REFUSE_OR_NULL(self->busy, PyExc_RuntimeError, "a request was booked within a decision");
    Record *record = (Record *)args[0];
    Request request = {
        .inputs = args[4] == Py_None ? NULL : args[4],
        .now = PyFloat_AsDouble(args[5]),
    };
    Question question = {.hashes = NULL};
    Py_buffer packed;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[2], &packed, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    question.hashes = packed.buf;
    question.blocks = packed.len / (Py_ssize_t)sizeof *question.hashes;
    Placed *placed = NULL;
    if (read_route(args[1], &request) == 0 && record->worker != NULL &&
        read_attribute(args[1], interned.affinity, 'K', &question.affinity) == 0) {
        lengths_forecast(self->lengths, question.hashes, question.blocks, &request.forecast);
        self->busy = 1;
        self->by = (const Course *)args[3];
        placed = book(self, &request, &question, record);
        self->by = self->own;
        self->busy = 0;
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "a record without a worker cannot be booked");
    }
    Py_XDECREF(request.name);
    Py_XDECREF(request.model);
    PyBuffer_Release(&packed);
    return (PyObject *)placed;
}

/* enter(placed, request_id, tenant, again | None, now): record what was booked; `again`: the record of the
 * attempt before
 */
PyObject *decider_enter(Decider *self, ARGUMENTS) {
    REFUSE_OR_NULL(nargs != 5, PyExc_TypeError, "enter takes 5 arguments, not %zd", nargs);
    REFUSE_OR_NULL(!Py_IS_TYPE(args[0], &placed_type) || !PyBytes_Check(args[1]) ||
                   !PyUnicode_Check(args[2]) || (args[3] != Py_None &&
                                                 !Py_IS_TYPE(args[3], &record_type)),
                   PyExc_TypeError, "enter takes a Placed, bytes, a str, a Record or None, a time");
    Placed *placed = (Placed *)args[0];
    Record *again = args[3] == Py_None ? NULL : (Record *)args[3];
    double now = PyFloat_AsDouble(args[4]);
    TRY_OR_NULL(no_error());
    if (self->ring == NULL || !isnan(placed->sent_s) || (again != NULL && again == placed->record)) {
        return PyErr_Format(PyExc_RuntimeError,
                            "the decider has no log yet, or the request was recorded before");
    }
    return enter(self, placed, args[1], args[2], again, now) < 0 ? NULL : Py_NewRef(Py_None);
}
