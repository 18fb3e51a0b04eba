/* Who would have been chosen next: the costs of a decision, while they are those of the last one. */
#include "decide/decide.h"

#include <math.h>

#define MOST_RUNNERS 64

/* Return whether the costs are those of `states`, all of them. */
static int is_priced(const Decider *self, PyObject *states) {
    for (int i = 0; self->priced != 0 && i < COHORTS; i++) {
        if (self->cohorts[i].used == self->priced) {
            return self->cohorts[i].states == states;
        }
    }
    return 0;
}

/* Return the place of the least cost that is not among `taken`; -1 for none that is a number. */
static Py_ssize_t next_of(const Decider *self, Py_ssize_t count, const Py_ssize_t *taken,
                          Py_ssize_t many) {
    Py_ssize_t best = -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t before = 0;
        if (isnan(self->costs[i]) || (best >= 0 && !(self->costs[i] < self->costs[best]))) {
            continue;
        }
        while (before < many && taken[before] != i) {
            before++;
        }
        best = before == many ? i : best;
    }
    return best;
}

PyObject *decider_runners_up(Decider *self, ARGUMENTS) {
    Py_ssize_t most = nargs == 2 ? PyLong_AsSsize_t(args[1]) : -1;
    RETURN_IF(most == -1 && PyErr_Occurred(), NULL);
    REFUSE_OR_NULL(nargs != 2 || most < 0 || most > MOST_RUNNERS || !PyTuple_CheckExact(args[0]),
                   PyExc_TypeError, "runners_up takes a tuple of states, and a number <= %d",
                   MOST_RUNNERS);
    if (self->busy || !is_priced(self, args[0])) {
        Py_RETURN_NONE;
    }
    Py_ssize_t taken[MOST_RUNNERS], many = 0, place, count = PyTuple_GET_SIZE(args[0]);
    while (many < most && (place = next_of(self, count, taken, many)) >= 0) {
        taken[many++] = place;
    }
    PyObject *names = PyList_New(many);
    for (Py_ssize_t i = 0; names != NULL && i < many; i++) {
        WorkerState *state = (WorkerState *)PyTuple_GET_ITEM(args[0], taken[i]);
        PyList_SET_ITEM(names, i, Py_NewRef(state->worker));
    }
    return names;
}
