/* Record: one request's decision and what became of it. */
#include "base/names.h"
#include "base/shell.h"
#include "insight/records.h"

#include <math.h>

const char *const state_names[STATES] = {"open", "finished", "client_gone", "failed", "cut",
                                         "refused"};

Record *record_new(void) {
    Record *self = (Record *)record_type.tp_alloc(&record_type, 0);
    if (self != NULL) {
        self->decided_s = self->first_token_s = self->ended_s = self->held_ms = NAN;
        self->attempts = 1;
        self->round_robin_blocks = self->usage_cached = self->forecast_samples = UNKNOWN;
    }
    return self;
}

void record_forget_hashes(Record *self) {
    Py_CLEAR(self->hashes);
}

void record_forget_candidates(Record *self) {
    PyObject *workers = self->workers;
    FREE_ALL(self->weighed_terms, self->scores);
    self->weighed_terms = NULL;
    self->scores = NULL;
    self->workers = NULL;
    self->weighed = 0;
    Py_XDECREF(workers);
}

static void record_dealloc(Record *self) {
    record_forget_hashes(self);
    record_forget_candidates(self);
    XDECREF_ALL(self->request_id, self->worker, self->policy, self->tenant, self->decision,
                self->maker, self->failures, self->reported, self->left_out, self->traced);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

void record_stand_for(Record *self, Record *other) {
    PyObject *before[] = {self->worker, self->policy, self->decision, self->maker};
    record_forget_candidates(self);
    self->worker = Py_NewRef(other->worker);
    self->policy = Py_NewRef(other->policy);
    self->decision = Py_XNewRef(other->decision);
    self->maker = Py_XNewRef(other->maker);
    self->weighed_terms = other->weighed_terms;
    self->scores = other->scores;
    self->workers = other->workers;
    self->weighed = other->weighed;
    other->weighed_terms = NULL;
    other->scores = NULL;
    other->workers = NULL;
    other->weighed = 0;
    self->chosen = other->chosen;
    self->score = other->score;
    self->prompt_tokens = other->prompt_tokens;
    self->block_size = other->block_size;
    self->considered = other->considered;
    self->best_overlap_blocks = other->best_overlap_blocks;
    self->told_blocks = other->told_blocks;
    self->kept_candidates = other->kept_candidates;
    self->by_cache = other->by_cache;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        Py_XDECREF(before[i]);
    }
}

static PyObject *record_forget(Record *self, PyObject *Py_UNUSED(none)) {
    record_forget_hashes(self);
    Py_RETURN_NONE;
}

RETURNS(Record, record_known,
        self->hashes == NULL
            ? PyTuple_New(0)
            : PyObject_CallMethod((PyObject *)self->hashes, "upto", "n", self->block_count))

/* The arguments of core.cost.terms.Candidate, in their order; texts are left empty. */
PyObject *terms_tuple(PyObject *worker, const CandidateTerms *terms) {
    PyObject *made = PyTuple_New(CANDIDATE_ARGUMENTS);
    Py_ssize_t place = 0;
    NEED_OR_NULL(made);
#define PUT(value) PyTuple_SET_ITEM(made, place++, value);
#define COUNT(name) PUT(PyLong_FromLongLong(terms->name))
#define NUMBER(name) PUT(PyFloat_FromDouble(terms->name))
#define TEXT(name) PUT(PyUnicode_FromStringAndSize(NULL, 0))
    PUT(Py_NewRef(worker))
    CANDIDATE_FIELDS(COUNT, NUMBER, TEXT)
#undef PUT
#undef COUNT
#undef NUMBER
#undef TEXT
    return made_or_null(made);
}

RETURNS(Record, record_terms,
        terms_tuple(self->worker == NULL ? Py_None : self->worker, &self->chosen))

static PyObject *record_weighed(Record *self, PyObject *Py_UNUSED(none)) {
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < self->weighed; i++) {
        PyObject *terms = terms_tuple(PyTuple_GET_ITEM(self->workers, i), &self->weighed_terms[i]);
        PyObject *pair = terms == NULL ? NULL : Py_BuildValue("dN", self->scores[i], terms);
        append_made(&list, pair);
    }
    return list;
}

static PyObject *get_decision(Record *self, void *Py_UNUSED(closure)) {
    if (self->decision == NULL && self->maker != NULL) {
        PyObject *maker = Py_NewRef(self->maker);
        PyObject *made = PyObject_CallOneArg(maker, (PyObject *)self);
        if (made == NULL) {
            Py_DECREF(maker);
            return NULL;
        }
        if (self->decision == NULL && self->maker == maker) {
            self->decision = made;
            Py_CLEAR(self->maker);
            record_forget_candidates(self);
        } else {
            Py_DECREF(made); /* it was decided again meanwhile */
        }
        Py_DECREF(maker);
    }
    REFUSE_OR_NULL(self->decision == NULL, PyExc_AttributeError, "this record has no decision");
    return Py_NewRef(self->decision);
}

int record_report(Record *self, PyObject *usage) {
    long long prompt = 0, completion = 0, cached = UNKNOWN;
    if (usage == Py_None) {
        self->has_usage = 0;
        self->usage_prompt = self->usage_completion = 0;
        self->usage_cached = UNKNOWN;
        Py_CLEAR(self->reported);
        return 0;
    }
    PyObject *told = PyObject_GetAttr(usage, interned.cached_tokens);
    int failed = told == NULL || (told != Py_None && read_attribute(usage, interned.cached_tokens,
                                                                    'L', &cached) < 0);
    Py_XDECREF(told);
    if (failed || read_attribute(usage, interned.prompt_tokens, 'L', &prompt) < 0 ||
        read_attribute(usage, interned.completion_tokens, 'L', &completion) < 0) {
        return -1;
    }
    self->has_usage = 1;
    self->usage_prompt = prompt;
    self->usage_completion = completion;
    self->usage_cached = cached;
    Py_XSETREF(self->reported, Py_NewRef(usage));
    return 0;
}

static PyObject *get_forecast(Record *self, void *Py_UNUSED(closure)) {
    if (self->forecast_samples == UNKNOWN) {
        Py_RETURN_NONE;
    }
    PyObject *module = PyImport_ImportModule("kvmesh.core.routing.output_lengths");
    PyObject *made = module == NULL ? NULL
                                    : PyObject_CallMethod(module, "OutputForecast", "dLL",
                                                          self->forecast_tokens,
                                                          self->forecast_samples,
                                                          self->forecast_family);
    Py_XDECREF(module);
    return made;
}

GETTER(Record, get_failures, self->failures == NULL ? PyTuple_New(0) : Py_NewRef(self->failures))

static int set_failures(Record *self, PyObject *value, void *Py_UNUSED(closure)) {
    Py_XSETREF(self->failures, Py_XNewRef(value));
    return 0;
}

GETTER(Record, get_tenant,
       self->tenant == NULL ? PyUnicode_FromString("") : Py_NewRef(self->tenant))

GETTER(Record, get_state,
       PyUnicode_FromString(state_names[self->state < STATES ? self->state : OPEN]))

static PyObject *get_ttft_ms(Record *self, void *Py_UNUSED(closure)) {
    if (isnan(self->first_token_s)) {
        Py_RETURN_NONE;
    }
    return PyFloat_FromDouble(record_ttft_ms(self));
}

static PyObject *get_time(Record *self, void *closure) {
    double value = *(double *)((char *)self + (size_t)closure);
    return isnan(value) ? Py_NewRef(Py_None) : PyFloat_FromDouble(value);
}

static int set_time(Record *self, PyObject *value, void *closure) {
    double number = value == NULL || value == Py_None ? NAN : PyFloat_AsDouble(value);
    TRY(no_error());
    *(double *)((char *)self + (size_t)closure) = number;
    return 0;
}

GETTER(Record, get_robin,
       self->round_robin_blocks == UNKNOWN ? Py_NewRef(Py_None)
                                           : PyLong_FromLongLong(self->round_robin_blocks))

static int set_robin(Record *self, PyObject *value, void *Py_UNUSED(closure)) {
    long long blocks = value == NULL || value == Py_None ? UNKNOWN : PyLong_AsLongLong(value);
    TRY(no_error());
    self->round_robin_blocks = blocks;
    return 0;
}

#define COUNT(name, member) {name, T_LONGLONG, offsetof(Record, member), READONLY, NULL}
MEMBERS(members,
    FIELDS(Record, T_OBJECT, READONLY, request_id, worker, policy, reported)
    FIELDS(Record, T_OBJECT, 0, left_out, traced)
    FIELDS(Record, T_DOUBLE, READONLY, decided_s, score)
    FIELDS(Record, T_INT, READONLY, status, attempts)
    FIELDS(Record, T_LONGLONG, READONLY, output_tokens, number, version, waiting_blocks,
           prompt_tokens, block_size, considered, best_overlap_blocks, told_blocks)
    FIELDS(Record, T_BOOL, READONLY, by_cache)
    FIELDS(Record, T_BOOL, 0, overridden, estimated)
    {"hash_count", T_PYSSIZET, offsetof(Record, block_count), READONLY, NULL},
    {"ms_per_token", T_DOUBLE, offsetof(Record, chosen.ms_per_token), READONLY, NULL},
    {"kept", T_LONGLONG, offsetof(Record, kept_candidates), READONLY, NULL},
    {"overlap_blocks", T_LONGLONG, offsetof(Record, chosen.overlap_blocks), READONLY, NULL},
    {"request_blocks", T_LONGLONG, offsetof(Record, chosen.request_blocks), READONLY, NULL},
    {"capacity_blocks", T_LONGLONG, offsetof(Record, chosen.capacity_blocks), READONLY, NULL},
    {"uncached_tokens", T_LONGLONG, offsetof(Record, chosen.uncached_tokens), READONLY, NULL},)

#define TIME(name, set) {#name, (getter)get_time, set, NULL, (void *)offsetof(Record, name)}

GETTERS(getters,
    {"decision", (getter)get_decision, NULL, "Made when it is first asked for.", NULL},
    {"round_robin_blocks", (getter)get_robin, (setter)set_robin, NULL, NULL},
    {"state", (getter)get_state, NULL, NULL, NULL},
    {"ttft_ms", (getter)get_ttft_ms, NULL, NULL, NULL},
    {"forecast", (getter)get_forecast, NULL, NULL, NULL},
    {"failures", (getter)get_failures, (setter)set_failures, NULL, NULL},
    {"tenant", (getter)get_tenant, NULL, NULL, NULL},
    TIME(first_token_s, NULL),
    TIME(ended_s, NULL),
    TIME(held_ms, (setter)set_time))

METHODS(methods,
    METHOD_NOARGS("known_hashes", record_known),
    METHOD_NOARGS("forget_hashes", record_forget),
    METHOD_NOARGS("terms", record_terms),
    METHOD_NOARGS("weighed", record_weighed))

PyTypeObject record_type = {
    INNER_TYPE("Record", Record, record),
    .tp_members = members, .tp_getset = getters, .tp_methods = methods,
};
