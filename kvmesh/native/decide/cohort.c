/* Cohorts: which worker is behind which slot of the index, and what each has of a prompt. */
#include "base/arguments.h"
#include "base/names.h"
#include "decide/decide.h"

#define EXPIRED_AT_ONCE 4096 /* core.index.overlaps */

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

/* Whether events have told all that there is to know of a slot's worker so deep in the prompt. */
static inline int is_withheld(const Decider *self, const Slots *slots, uint32_t slot,
                              Py_ssize_t depth) {
    uint32_t indexed = slots->indexed != NULL && slot < slots->count ? slots->indexed[slot] : 0;
    return indexed && indexed <= self->withheld_count && depth <= self->withheld[indexed - 1];
}

/* Note a depth at those whom a drop names, where it is more than they were known to have. 1, 0 when
 * it is withheld from all of them, -1 with an error set. `routed`: decisions told of it, not events.
 */
static int note_drop(Decider *self, const Asked *asked, const Drop *drop, const Slots *slots,
                     int routed, int distrust) {
    int noted = 0;
    for (uint32_t word = drop->start; word < drop->size; word++) {
        for (uint64_t bits = drop->words[word]; bits; bits &= bits - 1) {
            uint32_t slot = 64 * word + (uint32_t)__builtin_ctzll(bits);
            if (self->withheld_count && is_withheld(self, slots, slot, drop->depth)) {
                continue;
            }
            noted = 1;
            WorkerState *state = slot < slots->count ? slots->states[slot] : NULL;
            int doubted = state != NULL && distrust ? PySet_Contains(self->distrusted, state->worker)
                                                 : 0;
            TRY(doubted);
            if (state != NULL && routed && drop->depth > believed_at(asked, state)) {
                state->routed_in = asked->question;
                state->routed = drop->depth;
            }
            if (state == NULL || doubted ||
                (state->asked == asked->question && state->overlap >= drop->depth)) {
                continue;
            }
            state->asked = asked->question;
            state->overlap = drop->depth;
        }
    }
    return noted;
}

static int note_drops(Decider *self, Question *question, const Drops *drops, const Slots *slots,
                      int routed, int distrust) {
    for (Py_ssize_t i = 0; i < drops->count; i++) {
        const Drop *drop = drops->drops + i;
        int noted = note_drop(self, &question->asked, drop, slots, routed, distrust);
        TRY(noted);
        if (noted && drop->depth > question->deepest) {
            question->deepest = drop->depth;
        }
    }
    return 0;
}

/* Note of whom events have told more than a request can be continued from, how much: so deep nothing
 * is believed of them, unless their events do not count. -1 with an error set.
 */
static int withhold(Decider *self, const View *view, int distrust) {
    uint32_t slots = view->live_words * 64;
    if (slots > self->withheld_room) {
        TRY(RESIZE(self->withheld, slots));
        self->withheld_room = slots;
    }
    memset(self->withheld, 0, slots * sizeof *self->withheld);
    self->withheld_count = slots;
    for (Py_ssize_t i = 0; i < self->cut.count; i++) {
        Hit one = self->cut.hits[i];
        PyObject *worker = Py_NewRef(view_name(view, one.slot));
        int doubted = distrust ? PySet_Contains(self->distrusted, worker) : 0;
        Py_DECREF(worker);
        TRY(doubted);
        self->withheld[one.slot] = one.hit < one.depth && !doubted ? one.depth : 0;
    }
    return 0;
}

/* Cut what a search found to where hits of grouped workers end; -1 with an error set. */
static int cut_indexed(Decider *self, const Question *question, const View *view, int distrust) {
    Prompt prompt = {
        .known = question->hashes,
        .count = question->blocks,
        .ids = question->ids,
        .id_count = question->id_count,
        .block_size = (Py_ssize_t)self->block_size,
    };
    TRY(ends_cut(&view->ends, &prompt, view->live_words, &self->event_drops, &self->cut));
    return self->cut.count ? withhold(self, view, distrust) : 0;
}

/* Note what engines have of the prompt in the slot that they would take for it. */
static void expect_slots(const Decider *self, Question *question, const Approx *believed,
                            const Slots *slots) {
    for (Py_ssize_t i = 0; i < believed->slotted_count; i++) {
        const Leases *leases = believed->slotted[i];
        WorkerState *state = leases->slot < slots->count ? slots->states[leases->slot] : NULL;
        if (state == NULL || state->routed_in != question->asked.question ||
            state->overlap != state->routed) {
            continue;
        }
        state->overlap = state->routed = approx_expect(believed, leases, question->hashes,
                                                       question->blocks, self->block_size);
        if (state->overlap > question->deepest) {
            question->deepest = state->overlap;
        }
    }
}

/* Note how much of the prompt is believed cached at whom; -1 with an error set. */
static int find_believed(Decider *self, Question *question, Approx *believed, const Slots *slots,
                         double now) {
    TRY_IF(believed->next_end <= now, approx_expire(believed, now, EXPIRED_AT_ONCE));
    TRY(approx_find(believed, question->hashes, question->blocks, &self->believed_drops));
    TRY(note_drops(self, question, &self->believed_drops, slots, 1, 0));
    expect_slots(self, question, believed, slots);
    return 0;
}

int find_overlaps(Decider *self, Question *question, const Cohort *cohort, double now) {
    question->asked.question = next_question();
    question->deepest = 0;
    question->reach = 0;
    question->prepared = 0;
    self->event_drops.count = 0;
    self->withheld_count = 0;
    if (!self->by->uses_caches) {
        return 0;
    }
    if (cohort->view != NULL) {
        int distrust = PySet_GET_SIZE(self->distrusted) > 0;
        if (view_search(cohort->view, question->hashes, question->blocks, &self->event_drops) < 0 ||
            (cohort->view->ends.rule_count &&
             cut_indexed(self, question, cohort->view, distrust) < 0) ||
            note_drops(self, question, &self->event_drops, &cohort->indexed, 0, distrust) < 0) {
            return -1;
        }
    }
    for (int i = 0; i < BELIEFS; i++) {
        TRY_IF(self->believed[i] != NULL, find_believed(self, question, self->believed[i],
                                                        cohort->believed + i, now));
    }
    question->reach = question->deepest;
    return 0;
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
