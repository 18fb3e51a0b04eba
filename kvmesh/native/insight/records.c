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
    PyObject *hashes = self->hashes;
    uint64_t *blocks = self->blocks;
    self->hashes = NULL;
    self->blocks = NULL;
    PyMem_Free(blocks);
    Py_XDECREF(hashes);
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
    PyObject *owned[] = {self->request_id, self->worker,   self->policy,   self->tenant,
                         self->decision,   self->maker,    self->failures, self->forecast,
                         self->reported,   self->left_out, self->traced};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++) {
        Py_XDECREF(owned[i]);
    }
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int read_number(PyObject *from, PyObject *name, long long *number) {
    PyObject *value = PyObject_GetAttr(from, name);
    if (value == NULL) {
        return -1;
    }
    *number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *number == -1 && PyErr_Occurred() ? -1 : 0;
}

static int read_float(PyObject *from, PyObject *name, double *number) {
    PyObject *value = PyObject_GetAttr(from, name);
    if (value == NULL) {
        return -1;
    }
    *number = PyFloat_AsDouble(value);
    Py_DECREF(value);
    return *number == -1.0 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *read_name(PyObject *from, PyObject *name) {
    PyObject *value = PyObject_GetAttr(from, name);
    if (value != NULL && !PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "a decision's %U is a str, not %.80s", name,
                     Py_TYPE(value)->tp_name);
        Py_CLEAR(value);
    }
    return value;
}

static Py_ssize_t count_candidates(PyObject *decision) {
    PyObject *candidates = PyObject_GetAttr(decision, interned.candidates);
    Py_ssize_t count = candidates == NULL ? -1 : PyObject_Size(candidates);
    Py_XDECREF(candidates);
    return count;
}

int record_take(Record *self, PyObject *decision) {
    long long overlap, blocks, considered, best, by_cache, prompt, size, capacity;
    double rate;
    PyObject *chosen = PyObject_GetAttr(decision, interned.chosen);
    if (chosen == NULL) {
        return -1;
    }
    int failed = read_number(decision, interned.overlap_blocks, &overlap) < 0 ||
                 read_number(decision, interned.total_blocks, &blocks) < 0 ||
                 read_number(decision, interned.considered, &considered) < 0 ||
                 read_number(decision, interned.best_overlap_blocks, &best) < 0 ||
                 read_number(decision, interned.by_cache, &by_cache) < 0 ||
                 read_number(chosen, interned.prompt_tokens, &prompt) < 0 ||
                 read_number(chosen, interned.block_size, &size) < 0 ||
                 read_number(chosen, interned.capacity_blocks, &capacity) < 0 ||
                 read_float(chosen, interned.ms_per_token, &rate) < 0;
    Py_DECREF(chosen);
    Py_ssize_t candidates = failed ? -1 : count_candidates(decision);
    PyObject *worker = candidates < 0 ? NULL : read_name(decision, interned.worker);
    PyObject *policy = worker == NULL ? NULL : read_name(decision, interned.policy);
    if (policy == NULL) {
        Py_XDECREF(worker);
        return -1;
    }
    self->chosen.overlap_blocks = overlap;
    self->chosen.request_blocks = blocks;
    self->chosen.capacity_blocks = capacity;
    self->chosen.ms_per_token = rate;
    self->considered = considered;
    self->best_overlap_blocks = best;
    self->by_cache = by_cache != 0;
    self->prompt_tokens = prompt;
    self->block_size = size;
    self->kept_candidates = candidates > 1 ? candidates : 0;
    record_forget_candidates(self);
    PyObject *before[] = {self->worker, self->policy, self->decision, self->maker};
    self->worker = worker;
    self->policy = policy;
    self->decision = Py_NewRef(decision);
    self->maker = NULL;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        Py_XDECREF(before[i]);
    }
    return 0;
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

static PyObject *record_make(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *keywords) {
    PyObject *request_id, *decision, *hashes;
    long long blocks;
    double now;
    if (READ_NEW("Record", "SOOd", "request_id decision hashes decided_s", &request_id, &decision,
                 &hashes, &now) < 0 ||
        read_number(hashes, interned.blocks, &blocks) < 0) {
        return NULL;
    }
    Record *self = record_new();
    if (self == NULL) {
        return NULL;
    }
    self->request_id = Py_NewRef(request_id);
    self->hashes = Py_NewRef(hashes);
    self->block_count = blocks > 0 ? (Py_ssize_t)blocks : 0;
    self->decided_s = now;
    if (record_take(self, decision) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static PyObject *record_take_decision(Record *self, PyObject *decision) {
    return record_take(self, decision) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *record_forget(Record *self, PyObject *Py_UNUSED(none)) {
    record_forget_hashes(self);
    Py_RETURN_NONE;
}

static PyObject *record_known(Record *self, PyObject *Py_UNUSED(none)) {
    if (self->blocks != NULL) {
        Py_ssize_t size = self->block_count * (Py_ssize_t)sizeof *self->blocks;
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)self->blocks, size);
        PyObject *view = bytes == NULL ? NULL : PyMemoryView_FromObject(bytes);
        PyObject *known = view == NULL ? NULL : PyObject_CallMethod(view, "cast", "s", "Q");
        XDECREF_ALL(bytes, view);
        return known;
    }
    if (self->hashes == NULL) {
        return PyTuple_New(0);
    }
    PyObject *hashes = Py_NewRef(self->hashes);
    PyObject *known = PyObject_CallMethod(hashes, "upto", "n", self->block_count);
    Py_DECREF(hashes);
    return known;
}

/* The arguments of core.cost.terms.Candidate, in their order; texts are left empty. */
PyObject *terms_tuple(PyObject *worker, const CandidateTerms *terms) {
    PyObject *made = PyTuple_New(CANDIDATE_ARGUMENTS);
    Py_ssize_t place = 0;
    if (made == NULL) {
        return NULL;
    }
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
    if (PyErr_Occurred()) {
        Py_CLEAR(made);
    }
    return made;
}

static PyObject *record_terms(Record *self, PyObject *Py_UNUSED(none)) {
    return terms_tuple(self->worker == NULL ? Py_None : self->worker, &self->chosen);
}

static PyObject *record_weighed(Record *self, PyObject *Py_UNUSED(none)) {
    PyObject *list = PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < self->weighed; i++) {
        PyObject *terms = terms_tuple(PyTuple_GET_ITEM(self->workers, i), &self->weighed_terms[i]);
        PyObject *pair = terms == NULL ? NULL : Py_BuildValue("dN", self->scores[i], terms);
        append_made(&list, pair);
    }
    return list;
}

static PyObject *record_fleet(Record *self, PyObject *Py_UNUSED(none)) {
    return Py_BuildValue("LLLLLd", self->max_waiting, self->min_prefill_tokens,
                         self->max_overlap_blocks, self->min_requests, self->max_requests,
                         self->total_work);
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
    if (self->decision == NULL) {
        PyErr_SetString(PyExc_AttributeError, "this record has no decision");
        return NULL;
    }
    return Py_NewRef(self->decision);
}

static PyObject *call_class(const char *module_name, const char *name, PyObject *args) {
    PyObject *module = args == NULL ? NULL : PyImport_ImportModule(module_name);
    PyObject *type = module == NULL ? NULL : PyObject_GetAttrString(module, name);
    PyObject *made = type == NULL ? NULL : PyObject_Call(type, args, NULL);
    XDECREF_ALL(module, type, args);
    return made;
}

static PyObject *get_reported(Record *self, void *Py_UNUSED(closure)) {
    if (self->reported == NULL && self->has_usage) {
        PyObject *args = self->usage_cached == UNKNOWN
                             ? Py_BuildValue("LLO", self->usage_prompt, self->usage_completion, Py_None)
                             : Py_BuildValue("LLL", self->usage_prompt, self->usage_completion,
                                             self->usage_cached);
        PyObject *made = call_class("kvmesh.core.engines.sse", "Usage", args);
        if (made == NULL) {
            return NULL;
        }
        Py_XSETREF(self->reported, made);
    }
    return Py_NewRef(self->reported == NULL ? Py_None : self->reported);
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
    int failed = told == NULL || (told != Py_None && read_number(usage, interned.cached_tokens, &cached) < 0);
    Py_XDECREF(told);
    if (failed || read_number(usage, interned.prompt_tokens, &prompt) < 0 ||
        read_number(usage, interned.completion_tokens, &completion) < 0) {
        return -1;
    }
    self->has_usage = 1;
    self->usage_prompt = prompt;
    self->usage_completion = completion;
    self->usage_cached = cached;
    Py_XSETREF(self->reported, Py_NewRef(usage));
    return 0;
}

static int set_reported(Record *self, PyObject *usage, void *Py_UNUSED(closure)) {
    return record_report(self, usage == NULL ? Py_None : usage);
}

static PyObject *get_forecast(Record *self, void *Py_UNUSED(closure)) {
    if (self->forecast == NULL && self->forecast_samples != UNKNOWN) {
        PyObject *args = Py_BuildValue("dLL", self->forecast_tokens, self->forecast_samples,
                                       self->forecast_family);
        PyObject *made = call_class("kvmesh.core.routing.output_lengths", "OutputForecast", args);
        if (made == NULL) {
            return NULL;
        }
        Py_XSETREF(self->forecast, made);
    }
    return Py_NewRef(self->forecast == NULL ? Py_None : self->forecast);
}

static int set_object(Record *self, PyObject *value, void *closure) {
    PyObject **place = (PyObject **)((char *)self + (size_t)closure);
    Py_XSETREF(*place, Py_XNewRef(value));
    return 0;
}

static PyObject *get_failures(Record *self, void *Py_UNUSED(closure)) {
    return self->failures == NULL ? PyTuple_New(0) : Py_NewRef(self->failures);
}

static PyObject *get_tenant(Record *self, void *Py_UNUSED(closure)) {
    return self->tenant == NULL ? PyUnicode_FromString("") : Py_NewRef(self->tenant);
}

static PyObject *get_state(Record *self, void *Py_UNUSED(closure)) {
    return PyUnicode_FromString(state_names[self->state < STATES ? self->state : OPEN]);
}

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
    if (PyErr_Occurred()) {
        return -1;
    }
    *(double *)((char *)self + (size_t)closure) = number;
    return 0;
}

static PyObject *get_robin(Record *self, void *Py_UNUSED(closure)) {
    return self->round_robin_blocks == UNKNOWN ? Py_NewRef(Py_None)
                                               : PyLong_FromLongLong(self->round_robin_blocks);
}

static int set_robin(Record *self, PyObject *value, void *Py_UNUSED(closure)) {
    long long blocks = value == NULL || value == Py_None ? UNKNOWN : PyLong_AsLongLong(value);
    if (PyErr_Occurred()) {
        return -1;
    }
    self->round_robin_blocks = blocks;
    return 0;
}

#define COUNT(name, member) {name, T_LONGLONG, offsetof(Record, member), READONLY, NULL}
#define FLAG(name, member, flags) {name, T_BOOL, offsetof(Record, member), flags, NULL}

static PyMemberDef members[] = {
    {"request_id", T_OBJECT, offsetof(Record, request_id), READONLY, NULL},
    {"worker", T_OBJECT, offsetof(Record, worker), READONLY, NULL},
    {"policy", T_OBJECT, offsetof(Record, policy), READONLY, NULL},
    {"hashes", T_OBJECT, offsetof(Record, hashes), READONLY, NULL},
    {"left_out", T_OBJECT, offsetof(Record, left_out), 0, NULL},
    {"traced", T_OBJECT, offsetof(Record, traced), 0, NULL},
    {"hash_count", T_PYSSIZET, offsetof(Record, block_count), READONLY, NULL},
    {"decided_s", T_DOUBLE, offsetof(Record, decided_s), READONLY, NULL},
    {"ms_per_token", T_DOUBLE, offsetof(Record, chosen.ms_per_token), READONLY, NULL},
    {"score", T_DOUBLE, offsetof(Record, score), READONLY, NULL},
    {"status", T_INT, offsetof(Record, status), READONLY, NULL},
    {"attempts", T_INT, offsetof(Record, attempts), READONLY, NULL},
    {"output_tokens", T_LONGLONG, offsetof(Record, output_tokens), 0, NULL},
    COUNT("number", number),
    COUNT("version", version),
    COUNT("kept", kept_candidates),
    COUNT("waiting_blocks", waiting_blocks),
    COUNT("overlap_blocks", chosen.overlap_blocks),
    COUNT("request_blocks", chosen.request_blocks),
    COUNT("capacity_blocks", chosen.capacity_blocks),
    COUNT("prompt_tokens", prompt_tokens),
    COUNT("uncached_tokens", chosen.uncached_tokens),
    COUNT("block_size", block_size),
    COUNT("considered", considered),
    COUNT("best_overlap_blocks", best_overlap_blocks),
    COUNT("told_blocks", told_blocks),
    FLAG("by_cache", by_cache, READONLY),
    FLAG("session_kept", kept, READONLY),
    FLAG("overridden", overridden, 0),
    FLAG("estimated", estimated, 0),
    {NULL, 0, 0, 0, NULL},
};

#define TIME(name) {#name, (getter)get_time, (setter)set_time, NULL, (void *)offsetof(Record, name)}
#define OBJECT(name) \
    {#name, (getter)get_##name, (setter)set_object, NULL, (void *)offsetof(Record, name)}

static PyGetSetDef getters[] = {
    {"decision", (getter)get_decision, NULL, "Made when it is first asked for.", NULL},
    {"reported", (getter)get_reported, (setter)set_reported, NULL, NULL},
    {"round_robin_blocks", (getter)get_robin, (setter)set_robin, NULL, NULL},
    {"state", (getter)get_state, NULL, NULL, NULL},
    {"ttft_ms", (getter)get_ttft_ms, NULL, NULL, NULL},
    OBJECT(forecast),
    OBJECT(failures),
    OBJECT(tenant),
    TIME(first_token_s),
    TIME(ended_s),
    TIME(held_ms),
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    METHOD_O("take", record_take_decision),
    METHOD_NOARGS("known_hashes", record_known),
    METHOD_NOARGS("forget_hashes", record_forget),
    METHOD_NOARGS("terms", record_terms),
    METHOD_NOARGS("weighed", record_weighed),
    METHOD_NOARGS("fleet", record_fleet),
    {NULL, NULL, 0, NULL},
};

PyTypeObject record_type = {
    SLOTS("Record", sizeof(Record), 0),
    .tp_new = record_make,
    .tp_dealloc = (destructor)record_dealloc,
    .tp_members = members,
    .tp_getset = getters,
    .tp_methods = methods,
};
