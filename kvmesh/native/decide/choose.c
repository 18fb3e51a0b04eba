/* Which worker takes a request. */
#include "base/xxh3.h"
#include "decide/decide.h"
#include "loads/turns.h"

#include <string.h>

#define NEW_SHARE 0.5 /* of a prompt of which less is cached: it is new. Source: Preble, arXiv 2407.00023 */

/* A worker that holds more than this share of what the best one does is a home already. */
#define NEW_HOME 0.5

/* A second home's last prefill is so many times as long ago as this one takes: copies cost an idle worker
 * a sixteenth of its time at most, and a worker that is asked again and again makes none.
 */
#define REST 16.0

/* The one request that computes it waits longer for its first token by this share of a usual request's
 * stay at most.
 */
#define DELAY 0.25

/* Draw one of `count`, all equally likely; nothing is drawn when there is one. -1: an error. */
static Py_ssize_t pick(Decider *self, Py_ssize_t count) {
    if (count < 2) {
        return 0;
    }
    if (self->likeliest) {
        return 0;
    }
    PyObject *drawn = PyObject_CallNoArgs(self->random);
    double mark = drawn == NULL ? -1.0 : PyFloat_AsDouble(drawn);
    Py_XDECREF(drawn);
    TRY(no_error());
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

/* Return which of some ties, among those with `most`, a request's key (`seed`, 0 for none) or else the
 * first block beyond that belongs to, whatever other workers there are; -1 where there is neither, -2 with
 * an error set. Highest random weight: workers that come or go move only the blocks that are theirs.
 * Source: D. Thaler and C. Ravishankar, "Using name-based mappings to increase hit rates", 1998.
 */
static Py_ssize_t find_home(const Question *asked, const Py_ssize_t *ties, Py_ssize_t count,
                            long long most, uint64_t seed) {
    Py_ssize_t home = -1, size;
    uint64_t heaviest = 0;
    if (!seed && most >= asked->blocks) {
        return -1;
    }
    seed = seed ? seed : asked->hashes[most];
    for (Py_ssize_t i = 0; i < count; i++) {
        const WorkerState *state = asked->states[ties[i]];
        if (overlap_of(&asked->asked, state) != most) {
            continue;
        }
        const char *name = PyUnicode_AsUTF8AndSize(state->worker, &size);
        if (name == NULL) {
            return -2;
        }
        uint64_t weight = xxh3_64(name, (size_t)size, seed);
        if (home < 0 || weight > heaviest) {
            heaviest = weight;
            home = i;
        }
    }
    return home;
}

/* Return which of some ties to take: one that holds most of the prompt, and of those the home of the
 * request's key (`seed`), or else of the first block that they lack. So replicas that do not know of each
 * other's latest choices send the same new prefix to the same worker, and a hot one, whose holders are
 * overloaded, to the same next: homes follow each other in rendezvous order. Formulas without a margin
 * draw, as they are published. -1 with an error set.
 */
static Py_ssize_t settle_tie(Decider *self, const Question *asked, Py_ssize_t *ties,
                             Py_ssize_t count, uint64_t seed) {
    if (self->by->margin == 0.0) {
        Py_ssize_t drawn = pick(self, count);
        return drawn < 0 ? -1 : ties[drawn];
    }
    long long most = most_of(asked, ties, count);
    Py_ssize_t best = 0, home = find_home(asked, ties, count, most, seed);
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

/* Keep those of the ties that cost least; return how many there are. */
static Py_ssize_t keep_cheapest(const Decider *self, Py_ssize_t *ties, Py_ssize_t count) {
    double least = self->costs[ties[0]];
    Py_ssize_t equal = 0;
    for (Py_ssize_t i = 1; i < count; i++) {
        least = self->costs[ties[i]] < least ? self->costs[ties[i]] : least;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (self->costs[ties[i]] == least) {
            ties[equal++] = ties[i];
        }
    }
    return equal;
}

/* Return which of some ties to take. What hardly begins like anything cached goes to the idle worker whose
 * prefill has rested longest, unless its key has a home: else whoever served the first prompt, and so holds
 * the beginning that all have in common, would get every other one, and the rest of an idle fleet none.
 * Where none is idle it goes to the cheapest: a home is of no use to it, and what is learned of speeds
 * differs less than loads do.
 */
static Py_ssize_t settle(Decider *self, const Question *asked, Py_ssize_t *ties,
                         Py_ssize_t count) {
    double longest = 0.0;
    Py_ssize_t rested = 0, equal = 0;
    uint64_t seed = self->by->margin == 0.0 ? 0 : home_seed(self, asked);
    if (seed || self->by->margin == 0.0 || NEW_SHARE * (double)asked->asked.request_blocks <=
                                   (double)most_of(asked, ties, count)) {
        return settle_tie(self, asked, ties, count, seed);
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
    if (!rested) {
        equal = keep_cheapest(self, ties, count);
    }
    return settle_tie(self, asked, ties, equal, 0);
}

/* Return the worker at rest that computes the prefix in place of the cheapest, which it becomes one more
 * home of; -1 with an error set.
 *
 * Formulas weigh a request by itself, and alone it is always served sooner where its prefix is: an idle
 * fleet behind one system prompt would work on as many workers as happened to be asked at once at first,
 * for ever, each request slowed by those beside it. So where requests that are being served share all that
 * the cheapest holds of this one, this one's prefill moves: nobody else waits at a worker at rest. What a
 * session has of its own is shared with nobody.
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
    NEED(speed);
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
        set_made(&costs, i, cost);
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

/* Return cost and terms of `count` candidates from the `first` on, a new list; NULL with an error set. */
static PyObject *weigh(Decider *self, const Question *asked, Py_ssize_t first, Py_ssize_t count) {
    PyObject *weighed = PyList_New(count);
    for (Py_ssize_t i = 0; weighed != NULL && i < count; i++) {
        CandidateTerms terms;
        WorkerState *state = asked->states[first + i];
        PyObject *made = write_terms(self, asked, state, &terms) < 0
                             ? NULL
                             : terms_tuple(state->worker, &terms);
        PyObject *pair = made == NULL ? NULL : Py_BuildValue("dN", self->costs[first + i], made);
        set_made(&weighed, i, pair);
    }
    return weighed;
}

/* Write the costs that somebody else computes of the terms. */
static int ask_for_costs(Decider *self, const Question *asked, Py_ssize_t first, Py_ssize_t count) {
    memset(self->costs + first, 0, (size_t)count * sizeof *self->costs);
    PyObject *weighed = weigh(self, asked, first, count);
    PyObject *costs = weighed == NULL ? NULL : PyObject_CallOneArg(self->by->price, weighed);
    Py_XDECREF(weighed);
    if (costs != NULL && (!PyList_CheckExact(costs) || PyList_GET_SIZE(costs) != count)) {
        PyErr_Format(PyExc_TypeError, "costs are a list of %zd numbers", count);
    }
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < count && i < PyList_GET_SIZE(costs); i++) {
        self->costs[first + i] = PyFloat_AsDouble(PyList_GET_ITEM(costs, i));
    }
    Py_XDECREF(costs);
    return PyErr_Occurred() ? -1 : 0;
}

int price(Decider *self, const Question *asked, Py_ssize_t first, Py_ssize_t count) {
    if (self->by->price != NULL) {
        return ask_for_costs(self, asked, first, count);
    }
    return formula_costs(self->by->formula, &asked->asked, asked->states + first, count,
                         self->costs + first);
}

/* Write the places of those to choose among to the ties; return how many there are, -1 with an error
 * set.
 */
static Py_ssize_t list_candidates(Decider *self, const Question *asked, PyObject *allow) {
    REFUSE(allow != NULL && !Py_IS_TYPE(allow, &forecasts_type), PyExc_TypeError,
           "those to choose among are told by Forecasts, not %.100s", Py_TYPE(allow)->tp_name);
    if (allow != NULL) {
        return forecasts_in_time((Forecasts *)allow, &asked->asked, asked->states, asked->count,
                                 self->ties);
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

/* Keep those of the ties that have least cached; return how many there are, -1 with an error set. */
static Py_ssize_t keep_smallest(Decider *self, const Question *asked, Py_ssize_t candidates) {
    long long least = 0;
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < candidates; i++) {
        long long blocks = cached_blocks(self, asked->states[self->ties[i]]);
        TRY(blocks);
        count = i == 0 || blocks < least ? 0 : count;
        least = count == 0 ? blocks : least;
        if (blocks == least) {
            self->ties[count++] = self->ties[i];
        }
    }
    return count;
}

Py_ssize_t choose_by_cost(Decider *self, const Question *asked, PyObject *allow) {
    TRY(price(self, asked, 0, asked->count));
    Py_ssize_t count = list_candidates(self, asked, allow);
    if (count < 0 || self->by->draw != Py_None) {
        return count < 0 ? -1 : draw_by_cost(self, count);
    }
    count = keep_least(self, count);
    REFUSE(count == 0, PyExc_ArithmeticError, "a cost formula gives no numbers");
    if (count > 1 && self->smallest && (count = keep_smallest(self, asked, count)) < 0) {
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

Py_ssize_t choose_blind(Decider *self, const Question *asked) {
    Py_ssize_t count = asked->count;
    if (self->by->mode == MODE_ROUND_ROBIN) {
        for (Py_ssize_t i = 0; i < count; i++) {
            self->names[i] = asked->states[i]->worker;
        }
        return turns_next(self->sequences->turns, self->names, count, self->replica);
    }
    if (self->by->mode == MODE_RANDOM) {
        return pick(self, count);
    }
    if (self->by->mode == MODE_POWER_OF_TWO && count > 1) {
        Py_ssize_t first = pick(self, count), second = first < 0 ? -1 : pick(self, count - 1);
        TRY(second);
        self->ties[0] = first;
        self->ties[1] = second < first ? second : second + 1;
        return choose_least(self, asked, self->ties, 2);
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        self->ties[i] = i;
    }
    return choose_least(self, asked, self->ties, count);
}
