/* Which worker takes a request: core.routing.chooser.Chooser for what needs nothing unusual. */
#include "decide.h"
#include "turns.h"
#include "xxh3.h"

#define NEW_SHARE 0.5 /* core.routing.chooser.NEW_SHARE */
#define NEW_HOME 0.5  /* core.routing.spread.second_home */
#define REST 16.0
#define DELAY 0.25

/* Draw one of `count`, all equally likely; nothing is drawn when there is one. -1: an error. */
static Py_ssize_t pick(Decider *self, Py_ssize_t count) {
    if (count < 2) {
        return 0;
    }
    PyObject *drawn = PyObject_CallNoArgs(self->random);
    double mark = drawn == NULL ? -1.0 : PyFloat_AsDouble(drawn);
    Py_XDECREF(drawn);
    if (PyErr_Occurred()) {
        return -1;
    }
    mark *= (double)count;
    return mark < 0.0 ? 0 : mark < (double)count ? (Py_ssize_t)mark : count - 1;
}

static long long most_of(const Question *asked, const Py_ssize_t *ties, Py_ssize_t count) {
    long long most = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        long long overlap = overlap_of(&asked->asked, asked->states[ties[i]]);
        most = overlap > most ? overlap : most;
    }
    return most;
}

/* core.cost.selection.find_home of those with `most`; -2 with an error set. */
static Py_ssize_t find_home(const Question *asked, const Py_ssize_t *ties, Py_ssize_t count,
                            long long most) {
    Py_ssize_t home = -1, size;
    uint64_t heaviest = 0;
    if (most >= asked->blocks) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const WorkerState *state = asked->states[ties[i]];
        if (overlap_of(&asked->asked, state) != most) {
            continue;
        }
        const char *name = PyUnicode_AsUTF8AndSize(state->worker, &size);
        if (name == NULL) {
            return -2;
        }
        uint64_t weight = xxh3_64(name, (size_t)size, asked->hashes[most]);
        if (home < 0 || weight > heaviest) {
            heaviest = weight;
            home = i;
        }
    }
    return home;
}

/* Return which of some ties to take: core.routing.chooser._settle_tie. -1 with an error set. */
static Py_ssize_t settle_tie(Decider *self, const Question *asked, Py_ssize_t *ties,
                             Py_ssize_t count) {
    if (self->by->margin == 0.0) {
        Py_ssize_t drawn = pick(self, count);
        return drawn < 0 ? -1 : ties[drawn];
    }
    long long most = most_of(asked, ties, count);
    Py_ssize_t best = 0, home = find_home(asked, ties, count, most);
    if (home != -1) {
        return home < 0 ? -1 : ties[home];
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (overlap_of(&asked->asked, asked->states[ties[i]]) == most) {
            ties[best++] = ties[i];
        }
    }
    Py_ssize_t drawn = pick(self, best);
    return drawn < 0 ? -1 : ties[drawn];
}

/* core.routing.chooser.Chooser._settle */
static Py_ssize_t settle(Decider *self, const Question *asked, Py_ssize_t *ties,
                         Py_ssize_t count) {
    double longest = 0.0;
    Py_ssize_t rested = 0, equal = 0;
    if (self->by->margin == 0.0 || NEW_SHARE * (double)asked->asked.request_blocks <=
                                   (double)most_of(asked, ties, count)) {
        return settle_tie(self, asked, ties, count);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        const Loads *loads = asked->states[ties[i]]->loads;
        if (loads->active_requests == 0) {
            longest = rested++ == 0 || loads->progress_s < longest ? loads->progress_s : longest;
        }
    }
    for (Py_ssize_t i = 0; rested && i < count; i++) {
        const Loads *loads = asked->states[ties[i]]->loads;
        if (loads->active_requests == 0 && loads->progress_s == longest) {
            ties[equal++] = ties[i];
        }
    }
    return settle_tie(self, asked, ties, rested ? equal : count);
}

/* core.routing.spread.second_home.find_second_home: the worker at rest that computes the prefix in
 * place of the cheapest; -1 with an error set.
 */
static Py_ssize_t find_second_home(const Decider *self, const Question *question,
                                   Py_ssize_t cheapest) {
    const Asked *asked = &question->asked;
    const WorkerState *best = question->states[cheapest];
    long long overlap = overlap_of(asked, best), whole = key_depth(key_count(overlap));
    if (!best->loads->active_requests || whole == 0 ||
        loads_shared_blocks(best->loads, &asked->keys, overlap) < whole) {
        return cheapest;
    }
    const WorkerSpeed *speed = speeds_worker(self->speeds, best->worker);
    if (speed == NULL) {
        return -1;
    }
    Py_ssize_t found = cheapest;
    double least_ms = DELAY * speeds_residence_ms(self->speeds, speed);
    for (Py_ssize_t i = 0; i < question->count; i++) {
        const WorkerState *state = question->states[i];
        const Loads *loads = state->loads;
        long long held = overlap_of(asked, state);
        if (loads->active_requests || state->failure_share != 0.0 ||
            (double)held > NEW_HOME * (double)overlap) {
            continue;
        }
        double ms = asked->fleet * state->prefill->factor *
                    (double)((overlap - held) * asked->block_size);
        ms += slow_ms_of(asked, state);
        if (ms < least_ms && (asked->now - loads->progress_s) * 1000.0 >= REST * ms) {
            found = i;
            least_ms = ms;
        }
    }
    return found;
}

/* Have one of the `ties` drawn by what each costs; -1 with an error set. */
static Py_ssize_t draw_by_cost(Decider *self, Py_ssize_t count) {
    PyObject *costs = PyList_New(count);
    for (Py_ssize_t i = 0; costs != NULL && i < count; i++) {
        PyObject *cost = PyFloat_FromDouble(self->costs[self->ties[i]]);
        if (cost == NULL) {
            Py_CLEAR(costs);
        } else {
            PyList_SET_ITEM(costs, i, cost);
        }
    }
    PyObject *drawn = costs == NULL ? NULL : PyObject_CallOneArg(self->by->draw, costs);
    Py_ssize_t place = drawn == NULL ? -1 : PyLong_AsSsize_t(drawn);
    Py_XDECREF(drawn);
    Py_XDECREF(costs);
    if (!PyErr_Occurred() && (place < 0 || place >= count)) {
        PyErr_Format(PyExc_ValueError, "worker %zd of %zd was drawn", place, count);
    }
    return PyErr_Occurred() ? -1 : self->ties[place];
}

/* Return score and terms of all candidates, a new list; NULL with an error set. */
static PyObject *weigh(Decider *self, const Question *asked) {
    PyObject *weighed = PyList_New(asked->count);
    for (Py_ssize_t i = 0; weighed != NULL && i < asked->count; i++) {
        CandidateTerms terms;
        WorkerState *state = asked->states[i];
        PyObject *made = write_terms(self, asked, state, &terms) < 0
                             ? NULL
                             : terms_tuple(asked->asked.block_size, asked->asked.prompt_tokens,
                                           state->worker, &terms);
        PyObject *pair = made == NULL ? NULL : Py_BuildValue("dN", self->costs[i], made);
        if (pair == NULL) {
            Py_CLEAR(weighed);
        } else {
            PyList_SET_ITEM(weighed, i, pair);
        }
    }
    return weighed;
}

/* Write the places of those that are allowed to the ties; return how many there are, -1 with an error
 * set.
 */
static Py_ssize_t list_allowed(Decider *self, const Question *asked, PyObject *allow) {
    PyObject *weighed = weigh(self, asked);
    PyObject *places = weighed == NULL ? NULL : PyObject_CallOneArg(allow, weighed);
    Py_XDECREF(weighed);
    Py_ssize_t count = 0;
    if (places != NULL && (!PyList_CheckExact(places) || PyList_GET_SIZE(places) < 1 ||
                           PyList_GET_SIZE(places) > asked->count)) {
        PyErr_SetString(PyExc_TypeError, "those to choose among are a list of places");
    }
    while (!PyErr_Occurred() && count < asked->count && count < PyList_GET_SIZE(places)) {
        Py_ssize_t place = PyLong_AsSsize_t(PyList_GET_ITEM(places, count));
        if (!PyErr_Occurred() && (place < 0 || place >= asked->count)) {
            PyErr_Format(PyExc_ValueError, "worker %zd of %zd was allowed", place, asked->count);
        }
        self->ties[count++] = place;
    }
    Py_XDECREF(places);
    return PyErr_Occurred() ? -1 : count;
}

/* Write the places of those to choose among to the ties; return how many there are, -1 with an error
 * set.
 */
static Py_ssize_t list_candidates(Decider *self, const Question *asked, PyObject *allow) {
    if (allow != NULL) {
        return list_allowed(self, asked, allow);
    }
    for (Py_ssize_t i = 0; i < asked->count; i++) {
        self->ties[i] = i;
    }
    return asked->count;
}

/* Keep those of the ties whose cost counts as least; return how many there are. */
static Py_ssize_t keep_least(Decider *self, Py_ssize_t candidates) {
    double limit = 0.0;
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < candidates; i++) {
        double cost = self->costs[self->ties[i]];
        limit = i == 0 || cost < limit ? cost : limit;
    }
    limit = limit * (1.0 + self->by->margin);
    for (Py_ssize_t i = 0; i < candidates; i++) {
        if (self->costs[self->ties[i]] <= limit) {
            self->ties[count++] = self->ties[i];
        }
    }
    return count;
}

Py_ssize_t choose_by_cost(Decider *self, const Question *asked, PyObject *allow) {
    if (formula_costs(self->by->formula, &asked->asked, asked->states, asked->count, self->costs) < 0) {
        return -1;
    }
    Py_ssize_t count = list_candidates(self, asked, allow);
    if (count < 0 || self->by->draw != Py_None) {
        return count < 0 ? -1 : draw_by_cost(self, count);
    }
    count = keep_least(self, count);
    if (count == 0) {
        PyErr_SetString(PyExc_ArithmeticError, "a cost formula gives no numbers");
        return -1;
    }
    Py_ssize_t chosen = count > 1 ? settle(self, asked, self->ties, count) : self->ties[0];
    int spreads = self->by->margin != 0.0 && allow == NULL && !asked->prepared;
    return chosen < 0 || !spreads ? chosen : find_second_home(self, asked, chosen);
}

/* Return one of the least loaded of some, which `ties` are. */
static Py_ssize_t choose_least(Decider *self, const Question *asked, Py_ssize_t *ties,
                               Py_ssize_t count) {
    long long least = 0;
    Py_ssize_t equal = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        long long requests = asked->states[ties[i]]->loads->active_requests;
        least = i == 0 || requests < least ? requests : least;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (asked->states[ties[i]]->loads->active_requests == least) {
            ties[equal++] = ties[i];
        }
    }
    Py_ssize_t drawn = pick(self, equal);
    return drawn < 0 ? -1 : ties[drawn];
}

/* Ask core.workers.turns.WorkerTurns whose turn it is. */
static Py_ssize_t choose_in_turn(Decider *self, const Question *asked) {
    PyObject *turns = self->sequences->turns;
    if (!Py_IS_TYPE(turns, &turns_type)) {
        PyErr_Format(PyExc_TypeError, "turns are a WorkerTurns of the compiled core, not %.100s",
                     Py_TYPE(turns)->tp_name);
        return -1;
    }
    for (Py_ssize_t i = 0; i < asked->count; i++) {
        self->names[i] = asked->states[i]->worker;
    }
    return turns_next((Turns *)turns, self->names, asked->count, self->replica);
}

Py_ssize_t choose_blind(Decider *self, const Question *asked) {
    Py_ssize_t count = asked->count;
    if (self->by->mode == MODE_ROUND_ROBIN) {
        return choose_in_turn(self, asked);
    }
    if (self->by->mode == MODE_RANDOM) {
        return pick(self, count);
    }
    if (self->by->mode == MODE_POWER_OF_TWO && count > 1) {
        Py_ssize_t first = pick(self, count), second = first < 0 ? -1 : pick(self, count - 1);
        if (second < 0) {
            return -1;
        }
        self->ties[0] = first;
        self->ties[1] = second < first ? second : second + 1;
        return choose_least(self, asked, self->ties, 2);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        self->ties[i] = i;
    }
    return choose_least(self, asked, self->ties, count);
}
