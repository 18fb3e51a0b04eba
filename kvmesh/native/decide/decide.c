/* The decision in one call: hashes, overlaps, costs, choice, booking, belief, record. */
#include "base/names.h"
#include "base/xxh3.h"
#include "decide/decide.h"

#include <string.h>
#include <time.h>

/* An expected output counts up to this many times the mean: clients name limits, not lengths. */
#define OUTPUT_CAP 4.0
#define MAX_TOKENS 2147483647LL /* kvmesh.bounds.MAX_TOKENS */
#define BYTES_A_TOKEN 4       /* core.blocks.hashing */
#define APART_EVERY 32        /* decisions, of which one is timed phase by phase */

static uint64_t clock_ns(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000U + (uint64_t)at.tv_nsec;
}

/* Room for what is wanted, and half as much again. */
static inline Py_ssize_t room_for(Py_ssize_t wanted) { return wanted + wanted / 2; }

static int make_hash_room(Decider *self, Py_ssize_t blocks) {
    if (blocks > self->hash_room) {
        TRY(RESIZE(self->hashes, room_for(blocks)));
        self->hash_room = room_for(blocks);
    }
    return 0;
}

/* A prompt as it came. */
typedef struct {
    Scanned *scanned;
    PyObject *packed;  /* its token ids, None: those of its bytes */
    uint64_t root;     /* the seed of its first block */
    uint64_t affinity; /* of its prompt cache key, 0 for none */
    long long output;  /* tokens of its answer by its client's word, -1: by its limit */
} AskedPrompt;

/* Hash the prompt; 1, 0 for what Python has to look at, -1 with an error set. */
static int hash_prompt(Decider *self, Request *request, const AskedPrompt *prompt, Question *question) {
    PyObject *packed = prompt->packed;
    const uint32_t *ids;
    Py_ssize_t count;
    if (packed == Py_None) {
        const Scan *scan = &prompt->scanned->scan;
        int made = prompt->scanned->chat ? scan_chat_tokens(scan, &self->ids)
                                          : scan_prompt_tokens(scan, &self->ids);
        if (made < 1) {
            return made < 0 ? (PyErr_NoMemory(), -1) : 0;
        }
        ids = self->ids.ids;
        count = self->ids.count;
    } else {
        TRY(PyObject_GetBuffer(packed, &request->packed, PyBUF_SIMPLE));
        ids = request->packed.buf;
        count = request->packed.len / (Py_ssize_t)sizeof *ids;
    }
    /* Engines compute a prompt's last token always: a block that ends with it is never reused. */
    Py_ssize_t size = (Py_ssize_t)self->block_size, blocks = count > 0 ? (count - 1) / size : 0;
    int failed = make_hash_room(self, blocks) < 0;
    if (!failed) {
        xxh3_chain(self->hashes, (const uint8_t *)ids, blocks, (size_t)size * sizeof *ids, prompt->root);
    }
    request->prompt_tokens = count;
    question->blocks = blocks;
    question->root = prompt->root;
    question->hashes = self->hashes;
    question->ids = (const uint8_t *)ids;
    question->id_count = count;
    return failed ? -1 : 1;
}

/* core.dispatch.dispatch.Dispatch.enter: how long the answer is expected to be. */
static void foresee(Decider *self, Request *request, const AskedPrompt *prompt, const Question *question) {
    const Scan *scan = &prompt->scanned->scan;
    long long limit = prompt->output >= 0 ? prompt->output : scan->limit > 0 ? scan->limit : 0;
    long long asked = limit * scan->choices;
    request->expected = asked < MAX_TOKENS ? asked : MAX_TOKENS;
    lengths_forecast(self->lengths, question->hashes, question->blocks, &request->forecast);
    if (request->forecast.samples) {
        long long tokens = (long long)nearbyint(request->forecast.tokens);
        tokens = tokens > 1 ? tokens : 1;
        if (request->expected < 1 || request->expected > tokens) {
            request->expected = tokens;
        }
    }
}

static int speed_of(void *context, Loads *loads, double *ms_per_token) {
    Speeds *speeds = context;
    const WorkerSpeed *known = speeds_worker(speeds, loads->worker);
    NEED(known);
    *ms_per_token = speeds_ms_per_token(speeds, known);
    return 0;
}

/* Put together what all terms depend on besides their worker. */
static void fill_question(Decider *self, const Request *request, Question *question) {
    Asked *asked = &question->asked;
    long long size = self->block_size;
    long long usual = (long long)(OUTPUT_CAP * self->speeds->output_tokens);
    usual = usual ? usual : MOST_TOKENS;
    long long output = request->expected < usual ? request->expected : usual;
    Py_ssize_t count = PyTuple_GET_SIZE(request->states);
    asked->keys = (SharingKeys){question->hashes, question->blocks, 0};
    asked->prefilled = request->prefilled;
    asked->speeds = self->speeds;
    asked->block_size = size;
    asked->prompt_tokens = request->prompt_tokens;
    asked->request_blocks = (request->prompt_tokens + size - 1) / size;
    asked->output_blocks = (output + size - 1) / size;
    asked->answer_tokens = speeds_answer_tokens(self->speeds, output);
    asked->now = request->now;
    asked->fleet = self->speeds->fleet_ms_per_token;
    asked->step_tokens = self->speeds->steps->step_tokens;
    asked->arrivals_per_ms =
        sequences_arrivals_per_ms(self->sequences, request->now) / (double)count;
    asked->margin = self->by->margin;
    asked->weights_count = self->by->weights_count;
    memcpy(asked->weights, self->by->weights, sizeof asked->weights);
    asked_facts(asked);
}

/* Keep every candidate with what it would have cost, for people. */
static int keep_all(Decider *self, const Question *question, Record *record, PyObject *states) {
    size_t count = (size_t)question->count;
    record->weighed_terms = PyMem_Calloc(count, sizeof *record->weighed_terms);
    record->scores = PyMem_Calloc(count, sizeof *record->scores);
    record->workers = PyTuple_New(question->count);
    NEED_MEMORY(record->weighed_terms);
    NEED_MEMORY(record->scores);
    NEED_MEMORY(record->workers);
    for (Py_ssize_t i = 0; i < question->count; i++) {
        WorkerState *state = (WorkerState *)PyTuple_GET_ITEM(states, i);
        record->scores[i] = self->costs[i];
        PyTuple_SET_ITEM(record->workers, i, Py_NewRef(state->worker));
        TRY(write_terms(self, question, state, record->weighed_terms + i));
    }
    record->weighed = question->count;
    record->kept_candidates = question->count > 1 ? question->count : 0;
    return 0;
}

/* Return the most blocks of the prompt that any of those that were weighed has. */
static long long most_held(const Question *question) {
    long long most = 0;
    for (Py_ssize_t i = 0; i < question->count; i++) {
        long long held = overlap_of(&question->asked, question->states[i]);
        most = held > most ? held : most;
    }
    return most;
}

/* Return what is recorded of a choice, a new reference; NULL with an error set. */
static Record *note_choice(Decider *self, const Request *request, const Question *question,
                           Py_ssize_t chosen, const CandidateTerms *terms) {
    WorkerState *state = (WorkerState *)PyTuple_GET_ITEM(request->states, chosen);
    Record *record = record_new();
    NEED_OR_NULL(record);
    record->request_id = Py_NewRef(request->request_id);
    record->worker = Py_NewRef(state->worker);
    record->policy = Py_NewRef(self->by->policy);
    record->block_count = question->blocks;
    record->told_blocks = told_at(&question->asked, state);
    record->chosen = *terms;
    record->score = self->costs[chosen];
    record->prompt_tokens = request->prompt_tokens;
    record->block_size = self->block_size;
    record->considered = question->count;
    record->best_overlap_blocks = most_held(question);
    record->by_cache = self->by->mode == MODE_KV;
    record->estimated = !self->by->uses_caches;
    record->decided_s = request->now;
    record->maker = request->inputs == NULL
                        ? Py_NewRef(self->by->maker)
                        : PyObject_GetAttr(request->inputs, interned.made);
    if (record->maker == NULL ||
        (request->whole && keep_all(self, question, record, request->states) < 0)) {
        Py_CLEAR(record);
    }
    return record;
}

/* Have an index that forgets what was not asked for keep what was found. */
static int note_match(Decider *self, const Cohort *cohort, Request *request,
                      const Question *question) {
    if (cohort->view == NULL || cohort->view->old == NULL || !self->event_drops.count ||
        self->likeliest) {
        return 0;
    }
    if (request->hashed == NULL) {
        request->hashed = (PyObject *)hash_all(request, question);
    }
    PyObject *noted = request->hashed == NULL
                          ? NULL
                          : PyObject_CallMethod(self->index, "note_match", "On", request->hashed,
                                                self->event_drops.drops[0].depth);
    Py_XDECREF(noted);
    return noted == NULL ? -1 : 0;
}

/* Make room for as many workers; -1 with MemoryError set. */
static int make_scratch(Decider *self, Py_ssize_t count) {
    if (count > self->cost_room) {
        TRY(RESIZE(self->ties, room_for(count)));
        TRY(RESIZE(self->names, room_for(count)));
        TRY(RESIZE(self->costs, room_for(count)));
        self->cost_room = room_for(count);
    }
    return 0;
}

/* Say what the formula would have made of those whom nothing but a turn or a draw chose. */
static int price_blind(Decider *self, const Question *question, Py_ssize_t chosen, int whole) {
    Py_ssize_t first = whole ? 0 : chosen, count = whole ? question->count : 1;
    return price(self, question, first, count);
}

/* Return one of the questions that a request's inputs answer, NULL for one that they leave out, or with
 * an error set.
 */
static PyObject *hook_of(const Request *request, PyObject *name) {
    PyObject *hook = request->inputs == NULL ? NULL : PyObject_GetAttr(request->inputs, name);
    if (hook == Py_None) {
        Py_CLEAR(hook);
    }
    return hook;
}

/* Ask something of the prompt's hashes, None for none; NULL with an error set. */
static PyObject *ask_of_hashes(Request *request, const Question *question, PyObject *hook) {
    if (request->hashed == NULL && question->blocks) {
        request->hashed = (PyObject *)hash_all(request, question);
        NEED_OR_NULL(request->hashed);
    }
    return PyObject_CallOneArg(hook, question->blocks ? request->hashed : Py_None);
}

/* Have the request decided by what its inputs say, if they do; -1 with an error set. */
static int choose_course(Decider *self, Request *request, const Question *question,
                         PyObject **kept) {
    PyObject *hook = hook_of(request, interned.course_of);
    if (hook == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    *kept = ask_of_hashes(request, question, hook);
    Py_DECREF(hook);
    REFUSE(*kept != NULL && !Py_IS_TYPE(*kept, &course_type), PyExc_TypeError,
           "a Course, not %.100s", Py_TYPE(*kept)->tp_name);
    self->by = *kept == NULL ? self->by : (const Course *)*kept;
    return *kept == NULL ? -1 : 0;
}

static int are_tuples(PyObject *what) {
    REFUSE(!PyTuple_CheckExact(what), PyExc_TypeError,
           "what workers prepare are tuples, not %.100s", Py_TYPE(what)->tp_name);
    return 0;
}

/* Note what one worker has to bring or load first; -1 with an error set. */
static int note_prepared(const Asked *asked, WorkerState *state, PyObject *what) {
    long long overlap;
    if (are_tuples(what) < 0 ||
        !PyArg_ParseTuple(what, "LLLLdd", &overlap, &state->fetched, &state->worth, &state->slower,
                          &state->fetch_ms, &state->adapter_ms)) {
        return -1;
    }
    state->prepared_in = asked->question;
    if (overlap >= 0) {
        state->asked = asked->question;
        state->overlap = overlap;
    }
    return 0;
}

/* Note what workers have to bring or load first; -1 with an error set. */
static int prepare(Request *request, Question *question) {
    PyObject *hook = hook_of(request, interned.prepare);
    if (hook == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    PyObject *by_worker = ask_of_hashes(request, question, hook);
    int failed = by_worker == NULL;
    if (!failed && !PyDict_Check(by_worker)) {
        failed = set_error(PyExc_TypeError, "what workers prepare is a dict, not %.100s",
                           Py_TYPE(by_worker)->tp_name);
    }
    question->prepared |= !failed && PyDict_GET_SIZE(by_worker) > 0;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(request->cohort); i++) {
        WorkerState *state = (WorkerState *)PyTuple_GET_ITEM(request->cohort, i);
        PyObject *what = Py_XNewRef(PyDict_GetItemWithError(by_worker, state->worker));
        failed = what == NULL ? PyErr_Occurred() != NULL
                              : note_prepared(&question->asked, state, what) < 0;
        Py_XDECREF(what); /* reading it may have changed the dict */
    }
    Py_DECREF(hook);
    Py_XDECREF(by_worker);
    return failed ? -1 : 0;
}

/* Choose by cost, among those whom the request's inputs allow. */
static Py_ssize_t choose_priced(Decider *self, const Request *request, const Question *question) {
    PyObject *allow = hook_of(request, interned.allow);
    if (allow == NULL && PyErr_Occurred()) {
        return -1;
    }
    Py_ssize_t chosen = choose_by_cost(self, question, allow);
    Py_XDECREF(allow);
    return chosen;
}

/* Return the place of the worker to take, with its terms; -1 with an error set. */
static Py_ssize_t choose(Decider *self, Request *request, Question *question, Cohort **cohort,
                         CandidateTerms *terms) {
    Py_ssize_t count = PyTuple_GET_SIZE(request->states);
    double now = request->now;
    TRY(sequences_settle(self->sequences, now, speed_of, self->speeds));
    *cohort = decider_cohort(self, request->cohort);
    NEED(*cohort);
    TRY(find_overlaps(self, question, *cohort, now));
    TRY(prepare(request, question));
    if (self->apart) {
        self->found_ns = clock_ns();
    }
    question->prepared |= request->prefilled;
    fill_question(self, request, question);
    TRY(make_scratch(self, count));
    question->states = (WorkerState *const *)((PyTupleObject *)request->states)->ob_item;
    question->count = count;
    self->priced = 0;
    TRY(note_match(self, *cohort, request, question));
    Py_ssize_t chosen =
        self->by->mode == MODE_KV ? choose_priced(self, request, question)
                                  : choose_blind(self, question);
    TRY(chosen);
    int all = request->cohort == request->states && self->by->draw == Py_None;
    self->priced = self->by->mode == MODE_KV && all ? (*cohort)->used : 0;
    WorkerState *state = (WorkerState *)PyTuple_GET_ITEM(request->states, chosen);
    return write_terms(self, question, state, terms) < 0 ? -1 : chosen;
}

/* Choose, book and record; a new reference, None: Python has to. */
static PyObject *place(Decider *self, Request *request, Question *question) {
    Cohort *cohort;
    CandidateTerms terms;
    Py_ssize_t chosen = choose(self, request, question, &cohort, &terms);
    TRY_OR_NULL(chosen);
    if (terms.wait_ms > request->most_wait_ms) {
        return PyFloat_FromDouble(terms.wait_ms);
    }
    if (self->by->mode != MODE_KV && price_blind(self, question, chosen, request->whole) < 0) {
        return NULL;
    }
    Record *record = note_choice(self, request, question, chosen, &terms);
    Placed *placed = record == NULL ? NULL : book(self, request, question, record);
    Py_XDECREF(record);
    if (placed != NULL &&
        enter(self, placed, request->request_id, request->tenant, NULL, request->now) < 0) {
        unbook(self, placed);
        Py_CLEAR(placed);
    }
    return (PyObject *)placed;
}

/* Read what is asked; -1 with an error set. */
static int read_request(PyObject *const *args, Request *request, AskedPrompt *prompt) {
    REFUSE(!Py_IS_TYPE(args[0], &scanned_type) || !PyBytes_Check(args[2]) ||
           !PyUnicode_Check(args[3]) || !PyTuple_CheckExact(args[4]) ||
           (args[7] != Py_None && !PyUnicode_CheckExact(args[7])) ||
           (args[8] != Py_None && !Py_IS_TYPE(args[8], &course_type)) ||
           (args[9] != Py_None && !PyTuple_CheckExact(args[9])), PyExc_TypeError,
           "decide takes a Scanned, packed tokens or None, bytes, a str, a tuple of states, "
           "a time, a bool, a str or None, a Course or None, states or None, three numbers, "
           "inputs or None, two numbers");
    *request = (Request){
        .request_id = args[2],
        .tenant = args[3],
        .cohort = args[4],
        .states = args[9] == Py_None ? args[4] : args[9],
        .name = args[7],
        .now = PyFloat_AsDouble(args[5]),
    };
    *prompt = (AskedPrompt){.scanned = (Scanned *)args[0], .packed = args[1]};
    request->model = prompt->scanned->model;
    request->choices = prompt->scanned->scan.choices;
    request->streams = prompt->scanned->scan.stream;
    if (PyErr_Occurred() || (request->whole = PyObject_IsTrue(args[6])) < 0) {
        return -1;
    }
    prompt->output = PyLong_AsLongLong(args[10]);
    request->most_wait_ms = PyErr_Occurred() ? 0.0 : PyFloat_AsDouble(args[11]);
    prompt->root = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[12]);
    prompt->affinity = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[14]);
    request->keep_s = PyErr_Occurred() ? 0 : PyLong_AsLongLong(args[15]);
    TRY(no_error());
    prompt->output = prompt->output < MAX_TOKENS ? prompt->output : MAX_TOKENS;
    request->inputs = args[13] == Py_None ? NULL : args[13];
    return 0;
}

static int are_states(PyObject *states) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(states); i++) {
        if (!Py_IS_TYPE(PyTuple_GET_ITEM(states, i), &worker_state_type)) {
            PyErr_SetString(PyExc_TypeError, "workers are WorkerStates");
            return 0;
        }
    }
    return 1;
}

static void observe(Decider *self, int phase, uint64_t from, uint64_t to) {
    histogram_observe(self->phases[phase], (double)(to - from) / 1e9);
}

/* decide(scanned, packed, request_id, tenant, cohort, now, whole, name, course, states, output,
 * most_wait_ms, root, inputs, affinity, keep_s) -> Placed | None | the wait, ms, that is too long
 */
PyObject *decider_decide(Decider *self, ARGUMENTS) {
    Request request;
    AskedPrompt prompt;
    REFUSE_OR_NULL(nargs != 16, PyExc_TypeError, "decide takes 16 arguments, not %zd", nargs);
    TRY_OR_NULL(read_request(args, &request, &prompt));
    REFUSE_OR_NULL(self->own == NULL || self->ring == NULL, PyExc_RuntimeError,
                   "the decider follows no policy, or has no log, yet");
    REFUSE_OR_NULL(self->busy, PyExc_RuntimeError, "a decision was asked for within another");
    if (PyTuple_GET_SIZE(request.states) == 0) {
        Py_RETURN_NONE;
    }
    if (request.states != request.cohort && !are_states(request.states)) {
        return NULL;
    }
    self->by = args[8] == Py_None ? self->own : (const Course *)args[8];
    Question question = {.hashes = NULL, .affinity = prompt.affinity};
    uint64_t began = clock_ns(), hashed_ns = 0;
    int hashed = 1;
    self->busy = 1;
    self->apart = self->timed++ % APART_EVERY == 0;
    if (self->by->uses_caches) {
        hashed = hash_prompt(self, &request, &prompt, &question);
    } else {
        request.prompt_tokens = PyBytes_GET_SIZE(prompt.scanned->body) / BYTES_A_TOKEN;
    }
    if (self->apart) {
        hashed_ns = clock_ns();
    }
    PyObject *placed = NULL, *course = NULL;
    if (hashed == 1 && choose_course(self, &request, &question, &course) == 0) {
        foresee(self, &request, &prompt, &question);
        placed = place(self, &request, &question);
    } else if (hashed == 0) {
        placed = Py_NewRef(Py_None);
    }
    PyBuffer_Release(&request.packed);
    Py_XDECREF(request.hashed);
    if (placed != NULL && placed != Py_None) {
        uint64_t done = clock_ns();
        observe(self, DECIDE, began, done);
        if (self->apart) {
            observe(self, HASH, began, hashed_ns);
            observe(self, FIND, hashed_ns, self->found_ns);
            observe(self, SCORE, self->found_ns, done);
        }
    }
    self->apart = 0;
    self->busy = 0;
    self->by = self->own;
    Py_XDECREF(course);
    return placed;
}

/* Read what is to be chosen for; -1 with an error set. */
static int read_choice(Decider *self, PyObject *const *args, Request *request, Question *question) {
    REFUSE(!PyBytes_Check(args[0]) || !PyTuple_CheckExact(args[6]) || !PyTuple_CheckExact(args[7])
           || !Py_IS_TYPE(args[10], &course_type), PyExc_TypeError,
           "choose takes bytes, hashes, packed hashes, token ids or None, two numbers, "
           "two tuples of states, a time, a bool, a Course, inputs or None, two bools, a number");
    *request = (Request){
        .request_id = args[0],
        .prompt_tokens = PyLong_AsLongLong(args[4]),
        .expected = PyErr_Occurred() ? 0 : PyLong_AsLongLong(args[5]),
        .cohort = args[6],
        .states = args[7],
        .now = PyErr_Occurred() ? 0.0 : PyFloat_AsDouble(args[8]),
        .whole = PyErr_Occurred() ? -1 : PyObject_IsTrue(args[9]),
        .inputs = args[11] == Py_None ? NULL : args[11],
        .prefilled = PyErr_Occurred() ? -1 : PyObject_IsTrue(args[12]),
    };
    question->affinity = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[14]);
    Py_buffer packed;
    if (PyErr_Occurred() || PyObject_GetBuffer(args[2], &packed, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    question->blocks = packed.len / (Py_ssize_t)sizeof *self->hashes;
    int failed = make_hash_room(self, question->blocks) < 0;
    if (!failed) {
        if (question->blocks) { /* without any there may be no room either, and memcpy takes no NULL */
            memcpy(self->hashes, packed.buf, (size_t)question->blocks * sizeof *self->hashes);
        }
        question->hashes = self->hashes;
    }
    PyBuffer_Release(&packed);
    if (failed ||
        (args[3] != Py_None && PyObject_GetBuffer(args[3], &request->packed, PyBUF_SIMPLE) < 0)) {
        return -1;
    }
    if (self->other_count && request->packed.buf != NULL &&
        read_attribute(args[1], interned.root, 'K', &question->root) < 0) {
        PyBuffer_Release(&request->packed);
        return -1;
    }
    request->hashed = Py_NewRef(args[1]);
    question->ids = request->packed.buf;
    question->id_count = request->packed.len / (Py_ssize_t)sizeof(uint32_t);
    return 0;
}

/* choose(request_id, hashes, packed, ids, prompt_tokens, output_tokens, cohort, states, now, whole,
 * course, inputs, prefilled, likeliest, affinity) -> Record: nothing is booked
 */
PyObject *decider_choose(Decider *self, ARGUMENTS) {
    Request request;
    Question question = {.hashes = NULL};
    REFUSE_OR_NULL(nargs != 15, PyExc_TypeError, "choose takes 15 arguments, not %zd", nargs);
    REFUSE_OR_NULL(self->busy, PyExc_RuntimeError, "a decision was asked for within another");
    int likeliest = PyObject_IsTrue(args[13]);
    if (likeliest < 0 || read_choice(self, args, &request, &question) < 0) {
        return NULL;
    }
    PyObject *record = NULL;
    if (PyTuple_GET_SIZE(request.states) == 0) {
        PyErr_SetString(PyExc_ValueError, "there is nobody to choose among");
    } else if (request.states == request.cohort || are_states(request.states)) {
        Cohort *cohort;
        CandidateTerms terms;
        self->busy = 1;
        self->likeliest = likeliest;
        self->by = (const Course *)args[10];
        Py_ssize_t chosen = choose(self, &request, &question, &cohort, &terms);
        if (chosen >= 0 && (self->by->mode == MODE_KV ||
                            price_blind(self, &question, chosen, request.whole) == 0)) {
            record = (PyObject *)note_choice(self, &request, &question, chosen, &terms);
        }
        self->busy = 0;
        self->likeliest = 0;
        self->by = self->own;
    }
    PyBuffer_Release(&request.packed);
    Py_DECREF(request.hashed);
    return record;
}
