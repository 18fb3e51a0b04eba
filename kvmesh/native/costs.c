/* What a request costs at each of many workers, and where it costs least: core.quick_cost, to the
 * last bit, hence no fused multiply and add.
 */
#include "loads.h"

#define STACK_COSTS 1024
#define MEMORY_MARGIN 0.95      /* core.weighing.MEMORY_MARGIN */
#define LEAST_MS_PER_TOKEN 1e-4 /* core.cost.LEAST_MS_PER_TOKEN */

/* One request; the terms are those that the twin in Python reads from its Weighing. */
typedef struct {
    uint64_t question;
    PyObject *keys;        /* tuple; prefill-decode alone */
    PyObject *memory_wait; /* worker state -> ms; predicted-time alone */
    long long block_size, prompt_tokens, blocks, stride;
    double now, fleet, weight, contention, followers, decode_weight, step_tokens, margin;
} Asked;

static uint64_t questions;

/* Note at the workers that hold any of the prompt how much, so that the others need no look-up:
 * 7 ns each, half of what a worker takes.
 */
static int note_overlaps(Asked *asked, PyObject *overlaps, PyObject *known) {
    PyObject *worker, *depth;
    Py_ssize_t place = 0;
    asked->question = ++questions;
    while (PyDict_Next(overlaps, &place, &worker, &depth)) {
        PyObject *state = PyDict_GetItemWithError(known, worker);
        long long blocks = PyLong_AsLongLong(depth);
        if (PyErr_Occurred()) {
            return -1;
        }
        if (state != NULL && Py_IS_TYPE(state, &worker_state_type)) {
            ((WorkerState *)state)->asked = asked->question;
            ((WorkerState *)state)->overlap = blocks;
        }
    }
    return 0;
}

static inline long long overlap_at(const Asked *asked, const WorkerState *state) {
    return state->asked == asked->question ? state->overlap : 0;
}

/* What the request loses there by failures on average, ms: core.weighing.Weighing.failure_ms. */
static inline double failure_ms(const Asked *asked, const WorkerState *state) {
    double tokens = (double)asked->prompt_tokens + asked->step_tokens;
    return state->failure_share * (state->lost_ms + asked->fleet * tokens);
}

static int cost_predicted_time(const Asked *asked, WorkerState *state, double *cost) {
    const Loads *loads = state->loads;
    long long overlap = overlap_at(asked, state);
    double rate = asked->fleet * state->prefill->factor;
    long long uncached = asked->prompt_tokens - overlap * asked->block_size;
    double own = asked->weight * rate * ((double)(uncached > 0 ? uncached : 0) + asked->step_tokens);
    double wait = 0.0;
    if (loads->prefill_tokens) {
        wait = loads_wait_ms(loads, rate, asked->now, asked->step_tokens);
    }
    double delayed = 1.0 + asked->contention * (double)loads->active_requests +
                     asked->followers * own;
    double slowed = (wait + own) * delayed;
    *cost = slowed + asked->decode_weight * rate * (double)loads->prompt_tokens;
    long long most = loads->active_blocks + loads->expected_blocks + asked->blocks;
    if (state->capacity_blocks &&
        (double)most / (double)state->capacity_blocks > MEMORY_MARGIN) {
        PyObject *waits = PyObject_CallOneArg(asked->memory_wait, (PyObject *)state);
        double more = waits == NULL ? -1.0 : PyFloat_AsDouble(waits);
        Py_XDECREF(waits);
        if (PyErr_Occurred()) {
            return -1;
        }
        *cost += more;
    }
    if (state->failure_share != 0.0) {
        *cost += failure_ms(asked, state);
    }
    return 0;
}

static int cost_prefill_decode(const Asked *asked, WorkerState *state, double *cost) {
    long long overlap = overlap_at(asked, state), shared = 0;
    const Loads *loads = state->loads;
    if (overlap > 0 && PyTuple_GET_SIZE(asked->keys) > 0) {
        Py_INCREF(loads); /* comparing keys may run anything */
        shared = loads_shared_blocks(loads, asked->keys, asked->stride, overlap);
        Py_DECREF(loads);
        loads = state->loads;
    }
    if (shared < 0) {
        return -1;
    }
    long long uncached = asked->prompt_tokens - overlap * asked->block_size;
    long long needed = loads->active_blocks + asked->blocks - shared;
    long long work = loads->prefill_tokens + (uncached > 0 ? uncached : 0);
    *cost = asked->weight * ((double)work / (double)asked->block_size) + (double)needed;
    if (state->failure_share != 0.0) {
        double rate = asked->fleet * state->prefill->factor;
        rate = rate > LEAST_MS_PER_TOKEN ? rate : LEAST_MS_PER_TOKEN;
        *cost += failure_ms(asked, state) / rate / (double)asked->block_size;
    }
    return 0;
}

typedef int (*Formula)(const Asked *asked, WorkerState *state, double *cost);

/* Return the names, in order, of those whose cost counts as least. */
static PyObject *find_ties(const Asked *asked, PyObject *states, Formula formula) {
    double stack[STACK_COSTS], *costs = stack, limit = 0.0;
    Py_ssize_t count = PyTuple_GET_SIZE(states), done = 0;
    if (count > STACK_COSTS && (costs = PyMem_Malloc((size_t)count * sizeof *costs)) == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *ties = PyList_New(0);
    for (; ties != NULL && done < count; done++) {
        PyObject *state = PyTuple_GET_ITEM(states, done);
        if (!Py_IS_TYPE(state, &worker_state_type)) {
            PyErr_Format(PyExc_TypeError, "a WorkerState, not %.100s", Py_TYPE(state)->tp_name);
            break;
        }
        if (formula(asked, (WorkerState *)state, costs + done) < 0) {
            break;
        }
        limit = done == 0 || costs[done] < limit ? costs[done] : limit;
    }
    limit = limit * (1.0 + asked->margin);
    for (Py_ssize_t i = 0; done == count && ties != NULL && i < count; i++) {
        PyObject *worker = ((WorkerState *)PyTuple_GET_ITEM(states, i))->worker;
        if (costs[i] <= limit && PyList_Append(ties, worker) < 0) {
            Py_CLEAR(ties);
        }
    }
    if (costs != stack) {
        PyMem_Free(costs);
    }
    if (done < count) {
        Py_CLEAR(ties);
    }
    return ties;
}

/* predicted_time_ties(states, known, overlaps, terms, memory_wait) */
static PyObject *predicted_time_ties(PyObject *module, PyObject *args) {
    Asked asked = {0};
    PyObject *states, *known, *overlaps;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!O!(LLLdddddddd)O", &PyTuple_Type, &states, &PyDict_Type,
                          &known, &PyDict_Type, &overlaps, &asked.block_size, &asked.prompt_tokens, &asked.blocks,
                          &asked.now, &asked.fleet, &asked.weight, &asked.contention,
                          &asked.followers, &asked.decode_weight, &asked.step_tokens,
                          &asked.margin, &asked.memory_wait) ||
        note_overlaps(&asked, overlaps, known) < 0) {
        return NULL;
    }
    return find_ties(&asked, states, cost_predicted_time);
}

/* prefill_decode_ties(states, known, overlaps, terms, keys) */
static PyObject *prefill_decode_ties(PyObject *module, PyObject *args) {
    Asked asked = {0};
    PyObject *states, *known, *overlaps, *keys;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!O!O!(LLLLdddd)O", &PyTuple_Type, &states, &PyDict_Type, &known,
                          &PyDict_Type, &overlaps, &asked.block_size, &asked.prompt_tokens, &asked.blocks,
                          &asked.stride, &asked.weight, &asked.fleet, &asked.step_tokens,
                          &asked.margin, &keys)) {
        return NULL;
    }
    if (asked.stride < 1 || asked.block_size < 1) {
        return PyErr_Format(PyExc_ValueError, "block size and stride are at least 1");
    }
    if (note_overlaps(&asked, overlaps, known) < 0) {
        return NULL;
    }
    asked.keys = PySequence_Tuple(keys);
    PyObject *ties =
        asked.keys == NULL ? NULL : find_ties(&asked, states, cost_prefill_decode);
    Py_XDECREF(asked.keys);
    return ties;
}

PyMethodDef native_cost_methods[] = {
    {"predicted_time_ties", predicted_time_ties, METH_VARARGS,
     "Return the workers where a request has the least predicted time."},
    {"prefill_decode_ties", prefill_decode_ties, METH_VARARGS,
     "Return the workers where a request has the least prefill and decode blocks."},
    {NULL, NULL, 0, NULL},
};
