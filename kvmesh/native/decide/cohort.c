/* Cohorts: which worker is behind which slot of the index, and the terms of each. */
#include "base/arguments.h"
#include "base/names.h"
#include "decide/decide.h"

void cohort_clear(Cohort *cohort) {
    PyMem_Free(cohort->indexed.states);
    for (int i = 0; i < BELIEFS; i++) {
        PyMem_Free(cohort->believed[i].states);
        PyMem_Free(cohort->believed[i].indexed);
    }
    Py_XDECREF(cohort->states);
    Py_XDECREF(cohort->view);
    *cohort = (Cohort){.states = NULL};
}

/* Return the index's view, a new reference, NULL with an error set. */
static View *current_view(const Decider *self) {
    PyObject *view = PyObject_GetAttr(self->index, interned.view);
    if (view == Py_None) {
        Py_DECREF(view);
        view = PyObject_CallMethod(self->index, "current_view", NULL);
    }
    if (view != NULL && !Py_IS_TYPE(view, &view_type)) {
        PyErr_Format(PyExc_TypeError, "an index has a View, not %.100s", Py_TYPE(view)->tp_name);
        Py_CLEAR(view);
    }
    return (View *)view;
}

/* Return the states by their workers' names, a new dict. */
static PyObject *by_name(PyObject *states) {
    PyObject *found = PyDict_New();
    for (Py_ssize_t i = 0; found != NULL && i < PyTuple_GET_SIZE(states); i++) {
        PyObject *state = PyTuple_GET_ITEM(states, i);
        if (!Py_IS_TYPE(state, &worker_state_type)) {
            PyErr_Format(PyExc_TypeError, "a WorkerState, not %.100s", Py_TYPE(state)->tp_name);
            Py_CLEAR(found);
        } else if (PyDict_SetItem(found, ((WorkerState *)state)->worker, state) < 0) {
            Py_CLEAR(found);
        }
    }
    return found;
}

/* Write the states of those behind some slots, names or None; -1 with an error set. */
static int fill_slots(PyObject *states, PyObject *names, Slots *slots) {
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    slots->states = PyMem_Calloc((size_t)count + 1, sizeof *slots->states);
    NEED_MEMORY(slots->states);
    slots->count = (uint32_t)count;
    for (Py_ssize_t slot = 0; slot < count; slot++) {
        PyObject *name = PyTuple_GET_ITEM(names, slot);
        slots->states[slot] = (WorkerState *)PyDict_GetItemWithError(states, name);
        TRY(no_error());
    }
    return 0;
}

/* Return the names by slot of what is believed, None for a slot without one: a look-up of a name
 * that is no plain str may run anything, and move them.
 */
static PyObject *believed_names(const Approx *believed) {
    PyObject *names = PyTuple_New(believed->slot_count);
    for (uint32_t slot = 0; names != NULL && slot < PyTuple_GET_SIZE(names); slot++) {
        PyObject *name = believed->names[slot];
        PyTuple_SET_ITEM(names, slot, Py_NewRef(name == NULL ? Py_None : name));
    }
    return names;
}

/* Return the slots of a view's workers by name, a new dict. */
static PyObject *slots_by_name(const View *view) {
    PyObject *found = PyDict_New();
    for (Py_ssize_t slot = 0; found != NULL && slot < PyTuple_GET_SIZE(view->names); slot++) {
        uint32_t word = (uint32_t)(slot / 64);
        if (word >= view->live_words || !(view->live[word] >> (slot % 64) & 1)) {
            continue;
        }
        PyObject *number = PyLong_FromSsize_t(slot + 1);
        if (number == NULL || PyDict_SetItem(found, PyTuple_GET_ITEM(view->names, slot), number) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(number);
    }
    return found;
}

/* Write which slots of a view the workers of other slots have; -1 with an error set. */
static int fill_indexed(const View *view, PyObject *names, Slots *slots) {
    PyObject *found = slots_by_name(view);
    slots->indexed = found == NULL ? NULL : PyMem_Calloc((size_t)slots->count + 1, sizeof *slots->indexed);
    int failed = slots->indexed == NULL;
    if (failed && !PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    for (uint32_t slot = 0; !failed && slot < slots->count; slot++) {
        PyObject *number = PyDict_GetItemWithError(found, PyTuple_GET_ITEM(names, slot));
        failed = number == NULL && PyErr_Occurred() != NULL;
        slots->indexed[slot] = number == NULL ? 0 : (uint32_t)PyLong_AsUnsignedLong(number);
    }
    Py_XDECREF(found);
    return failed ? -1 : 0;
}

static int cohort_fill(Decider *self, Cohort *cohort) {
    PyObject *states = by_name(cohort->states);
    int failed = states == NULL;
    if (!failed && cohort->view != NULL) {
        failed = fill_slots(states, cohort->view->names, &cohort->indexed) < 0;
    }
    for (int i = 0; !failed && i < BELIEFS; i++) {
        if (self->believed[i] != NULL) {
            cohort->believed[i].changes = self->believed[i]->changes;
            PyObject *names = believed_names(self->believed[i]);
            failed = names == NULL || fill_slots(states, names, cohort->believed + i) < 0;
            if (!failed && cohort->view != NULL && cohort->view->ends.rule_count) {
                failed = fill_indexed(cohort->view, names, cohort->believed + i) < 0;
            }
            Py_XDECREF(names);
        }
    }
    Py_XDECREF(states);
    return failed ? -1 : 0;
}

/* Return whether the slots of what is believed are still those of the cohort. */
static int is_current(const Decider *self, const Cohort *cohort) {
    int current = 1;
    for (int i = 0; i < BELIEFS; i++) {
        const Approx *believed = self->believed[i];
        current &= believed == NULL || cohort->believed[i].changes == believed->changes;
    }
    return current;
}

Cohort *decider_cohort(Decider *self, PyObject *states) {
    View *view = self->by->uses_caches && self->index != NULL ? current_view(self) : NULL;
    if (view == NULL && PyErr_Occurred()) {
        return NULL;
    }
    Cohort *oldest = self->cohorts;
    for (Cohort *one = self->cohorts; one < self->cohorts + COHORTS; one++) {
        if (one->states == states && one->view == view && is_current(self, one)) {
            Py_XDECREF(view);
            one->used = ++self->question;
            return one;
        }
        oldest = one->used < oldest->used ? one : oldest;
    }
    cohort_clear(oldest);
    oldest->states = Py_NewRef(states);
    oldest->view = view;
    oldest->used = ++self->question;
    if (cohort_fill(self, oldest) < 0) {
        cohort_clear(oldest);
        return NULL;
    }
    return oldest;
}

/* May run anything: nothing borrowed of the state outlives it. */
static int read_report(const WorkerState *state, PyObject *name, long long *number) {
    PyObject *report = Py_NewRef(state->report);
    int failed = read_attribute(report, name, 'L', number);
    Py_DECREF(report);
    return failed;
}

/* core.index.overlaps.OverlapView.cached_blocks of one worker; -1 with an error set. */
long long cached_blocks(const Decider *self, const WorkerState *state) {
    int indexed = decider_confirms(self, state->worker);
    TRY(indexed);
    if (!indexed) {
        const Approx *routed = self->believed[ROUTED];
        return routed == NULL ? 0 : approx_blocks(routed, state->worker);
    }
    View *view = current_view(self);
    long long blocks = 0;
    PyObject *holdings[] = {view == NULL ? NULL : view->young->holdings,
                            view == NULL || view->old == NULL ? NULL : view->old->holdings};
    for (int i = 0; i < 2; i++) {
        PyObject *found =
            holdings[i] == NULL ? NULL : PyDict_GetItemWithError(holdings[i], state->worker);
        blocks += found == NULL ? 0 : ((Holding *)found)->blocks;
    }
    Py_XDECREF(view);
    blocks = state->own_tokens ? blocks * state->own_tokens / self->block_size : blocks;
    return PyErr_Occurred() ? -1 : blocks;
}

/* What was looked up of a worker besides its state. */
typedef struct {
    long long waiting, cached;
    double usage;
} Seen;

static int look_up(const Decider *self, const WorkerState *state, Seen *seen) {
    long long used = 0;
    seen->cached = cached_blocks(self, state);
    if (seen->cached < 0 || read_report(state, interned.used_blocks, &used) < 0 ||
        read_report(state, interned.waiting_requests, &seen->waiting) < 0) {
        return -1;
    }
    used = used > state->loads->active_blocks ? used : state->loads->active_blocks;
    double usage = state->capacity_blocks ? (double)used / (double)state->capacity_blocks : 0.0;
    seen->usage = usage < 1.0 ? usage : 1.0;
    return 0;
}

int write_terms(Decider *self, const Question *question, WorkerState *state,
                CandidateTerms *out) {
    const Asked *asked = &question->asked;
    Seen looked, *seen = &looked;
    TRY(look_up(self, state, seen));
#define TERM(name, value) out->name = value;
    WORKER_TERMS(TERM)
    REQUEST_TERMS(TERM)
    SEEN_TERMS(TERM)
#undef TERM
    return PyErr_Occurred() ? -1 : 0;
}
