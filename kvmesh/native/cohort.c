/* Cohorts: which worker is behind which slot of the index, and what each has of a prompt. */
#include "decide.h"

#define EXPIRED_AT_ONCE 4096 /* core.overlap.overlaps */

void cohort_clear(Cohort *cohort) {
    PyMem_Free(cohort->told.states);
    for (int i = 0; i < BELIEFS; i++) {
        PyMem_Free(cohort->believed[i].states);
    }
    Py_XDECREF(cohort->states);
    Py_XDECREF(cohort->view);
    *cohort = (Cohort){.states = NULL};
}

/* Return the index's view, a new reference, NULL with an error set. */
static View *current_view(const Decider *self) {
    PyObject *view = PyObject_GetAttr(self->index, asked_names.view);
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
    if (slots->states == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    slots->count = (uint32_t)count;
    for (Py_ssize_t slot = 0; slot < count; slot++) {
        PyObject *name = PyTuple_GET_ITEM(names, slot);
        slots->states[slot] = (WorkerState *)PyDict_GetItemWithError(states, name);
        if (PyErr_Occurred()) {
            return -1;
        }
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

static int cohort_fill(Decider *self, Cohort *cohort) {
    PyObject *states = by_name(cohort->states);
    int failed = states == NULL;
    if (!failed && cohort->view != NULL) {
        failed = fill_slots(states, cohort->view->names, &cohort->told) < 0;
    }
    for (int i = 0; !failed && i < BELIEFS; i++) {
        if (self->believed[i] != NULL) {
            cohort->believed[i].changes = self->believed[i]->changes;
            PyObject *names = believed_names(self->believed[i]);
            failed = names == NULL || fill_slots(states, names, cohort->believed + i) < 0;
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
    View *view = self->looks && self->index != NULL ? current_view(self) : NULL;
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

/* Note a depth at those whom a drop names, where it is more than they were known to have. */
static int note_drop(Decider *self, const Asked *asked, const Drop *drop, const Slots *slots,
                     int doubt) {
    for (uint32_t word = drop->start; word < drop->size; word++) {
        for (uint64_t bits = drop->words[word]; bits; bits &= bits - 1) {
            uint32_t slot = 64 * word + (uint32_t)__builtin_ctzll(bits);
            WorkerState *state = slot < slots->count ? slots->states[slot] : NULL;
            int doubted = state != NULL && doubt ? PySet_Contains(self->distrusted, state->worker)
                                                 : 0;
            if (doubted < 0) {
                return -1;
            }
            if (state == NULL || doubted ||
                (state->asked == asked->question && state->overlap >= drop->depth)) {
                continue;
            }
            state->asked = asked->question;
            state->overlap = drop->depth;
        }
    }
    return 0;
}

static int note_drops(Decider *self, Question *question, const Drops *drops, const Slots *slots,
                      int doubt) {
    if (drops->count && drops->drops[0].depth > question->deepest) {
        question->deepest = drops->drops[0].depth;
    }
    for (Py_ssize_t i = 0; i < drops->count; i++) {
        if (note_drop(self, &question->asked, drops->drops + i, slots, doubt) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Note how much of the prompt is believed cached at whom; -1 with an error set. */
static int find_believed(Decider *self, Question *question, Approx *believed, const Slots *slots,
                         double now) {
    if (believed->next_end <= now && approx_expire(believed, now, EXPIRED_AT_ONCE) < 0) {
        return -1;
    }
    if (approx_find(believed, question->hashes, question->blocks, &self->believed_drops) < 0) {
        return -1;
    }
    return note_drops(self, question, &self->believed_drops, slots, 0);
}

int find_overlaps(Decider *self, Question *question, const Cohort *cohort, double now) {
    question->asked.question = next_question();
    question->deepest = 0;
    self->told_drops.count = 0;
    if (!self->looks) {
        return 0;
    }
    if (cohort->view != NULL) {
        int doubt = PySet_GET_SIZE(self->distrusted) > 0;
        if (view_search(cohort->view, question->hashes, question->blocks, &self->told_drops) < 0 ||
            note_drops(self, question, &self->told_drops, &cohort->told, doubt) < 0) {
            return -1;
        }
    }
    for (int i = 0; i < BELIEFS; i++) {
        if (self->believed[i] != NULL &&
            find_believed(self, question, self->believed[i], cohort->believed + i, now) < 0) {
            return -1;
        }
    }
    return 0;
}

/* May run anything: nothing borrowed of the state outlives it. */
static int read_report(const WorkerState *state, PyObject *name, long long *number) {
    PyObject *report = Py_NewRef(state->report);
    PyObject *value = PyObject_GetAttr(report, name);
    *number = value == NULL ? -1 : PyLong_AsLongLong(value);
    Py_XDECREF(value);
    Py_DECREF(report);
    return PyErr_Occurred() ? -1 : 0;
}

/* core.overlap.overlaps.OverlapView.cached_blocks of one worker; -1 with an error set. */
static long long cached_blocks(const Decider *self, const WorkerState *state) {
    int told = self->index != NULL;
    if (told && PySet_GET_SIZE(self->distrusted)) {
        int doubted = PySet_Contains(self->distrusted, state->worker);
        if (doubted < 0) {
            return -1;
        }
        told = !doubted;
    }
    if (!told) {
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
    return PyErr_Occurred() ? -1 : blocks;
}

int write_terms(Decider *self, const Question *question, WorkerState *state,
                CandidateTerms *out) {
    const Asked *asked = &question->asked;
    long long overlap = overlap_of(asked, state), used = 0, waiting = 0;
    long long uncached = asked->prompt_tokens - overlap * asked->block_size;
    long long cached = cached_blocks(self, state);
    if (cached < 0 || read_report(state, asked_names.used_blocks, &used) < 0 ||
        read_report(state, asked_names.waiting_requests, &waiting) < 0) {
        return -1;
    }
    const Loads *loads = state->loads;
    long long shared = loads_shared_blocks(loads, &asked->keys, overlap);
    double rate = asked->fleet * state->prefill->factor;
    *out = (CandidateTerms){
        .overlap_blocks = overlap,
        .request_blocks = asked->request_blocks,
        .uncached_tokens = uncached > 0 ? uncached : 0,
        .prefill_tokens = loads->prefill_tokens,
        .active_blocks = loads->active_blocks,
        .decode_blocks = loads->active_blocks + asked->request_blocks - shared,
        .active_requests = loads->active_requests,
        .outstanding_tokens = loads->prompt_tokens,
        .waiting_requests = waiting,
        .capacity_blocks = state->capacity_blocks,
        .cached_blocks = cached,
        .wait_ms = loads->prefill_tokens
                       ? loads_wait_ms(loads, rate, asked->now, asked->step_tokens)
                       : 0.0,
        .ms_per_token = rate,
        .step_tokens = asked->step_tokens,
        .arrivals_per_ms = asked->arrivals_per_ms,
        .failure_share = state->failure_share,
        .failure_ms = failure_ms_of(asked, state),
    };
    if (state->capacity_blocks) {
        double capacity = (double)state->capacity_blocks;
        double usage = (double)(used > loads->active_blocks ? used : loads->active_blocks) /
                       capacity;
        out->cache_usage = usage < 1.0 ? usage : 1.0;
        return memory_wait_of(asked, state, out->decode_blocks, &out->memory_wait_ms);
    }
    return 0;
}
