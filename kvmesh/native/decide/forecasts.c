/* What is to be expected of a request with targets at each worker, and which of them are in time. */
#include "base/shell.h"
#include "decide/forecasts.h"

/* Read a number, None: NaN; -1 with an error set. */
static int read_target(PyObject *given, double *target) {
    *target = NAN;
    return given == Py_None ? 0 : read_double(given, target);
}

static PyObject *forecasts_new(NEW_ARGUMENTS) {
    PyObject *ttft_ms, *tpot_ms;
    Forecasts *self = (Forecasts *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    if (READ_NEW("Forecasts", "OOddd+!+!+!+!+O",
                 "ttft_ms tpot_ms waited_ms slack least coming own ttft_errors tpot_errors hopeless",
                 &ttft_ms, &tpot_ms, &self->waited_ms, &self->slack, &self->least, &formula_type,
                 &self->coming, &formula_type, &self->own, &time_errors_type, &self->ttft_errors,
                 &time_errors_type, &self->tpot_errors, &self->hopeless) < 0 ||
        read_target(ttft_ms, &self->ttft_ms) < 0 || read_target(tpot_ms, &self->tpot_ms) < 0) {
        Py_CLEAR(self);
    } else if (self->coming->weights || self->own->weights) {
        PyErr_SetString(PyExc_ValueError, "times have no weights");
    } else if (self->hopeless != Py_None && !PyExceptionClass_Check(self->hopeless)) {
        PyErr_Format(PyExc_TypeError, "hopeless is an exception or None, not %.100R",
                     self->hopeless);
    }
    return made_or_null(self);
}

static void forecasts_dealloc(Forecasts *self) {
    XDECREF_ALL(self->coming, self->own, self->ttft_errors, self->tpot_errors, self->hopeless,
                self->workers);
    PyMem_Free(self->found);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Return the chance to miss a target. */
static double chance_to_miss(const Forecasts *self, const Forecasted *at) {
    double kept = 1.0;
    if (!isnan(self->ttft_ms)) {
        double left_ms = self->ttft_ms - self->waited_ms;
        if (left_ms <= 0.0) {
            return 1.0;
        }
        kept -= chance_above(self->ttft_errors, at->coming_ms, left_ms);
    }
    if (!isnan(self->tpot_ms) && at->tpot_ms > 0.0) {
        kept *= 1.0 - chance_above(self->tpot_errors, at->tpot_ms, self->tpot_ms);
    }
    return 1.0 - kept;
}

/* Foretell one chunk of workers; -1 with an error set. */
static int foretell(const Forecasts *self, const Asked *asked, WorkerState *const *states,
                    Py_ssize_t count, Forecasted *found) {
    double coming[CHUNK], own[CHUNK];
    TRY(formula_costs(self->coming, asked, states, count, coming));
    TRY(formula_costs(self->own, asked, states, count, own));
    for (Py_ssize_t i = 0; i < count; i++) {
        const WorkerSpeed *known = speeds_worker(asked->speeds, states[i]->worker);
        NEED(known);
        found[i].coming_ms = coming[i];
        found[i].own_ms = own[i];
        found[i].tpot_ms = speeds_ms_per_output_token(asked->speeds, known);
        found[i].chance = chance_to_miss(self, found + i);
    }
    return 0;
}

/* Foretell all, and keep it; -1 with an error set. */
static int foretell_all(Forecasts *self, const Asked *asked, WorkerState *const *states,
                        Py_ssize_t count) {
    Forecasted *found = PyMem_Malloc((size_t)count * sizeof *found);
    PyObject *workers = found == NULL ? PyErr_NoMemory() : PyTuple_New(count);
    int failed = workers == NULL;
    for (Py_ssize_t done = 0; !failed && done < count; done += CHUNK) {
        Py_ssize_t some = count - done < CHUNK ? count - done : CHUNK;
        failed = foretell(self, asked, states + done, some, found + done) < 0;
    }
    if (failed) {
        PyMem_Free(found);
        Py_XDECREF(workers);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(workers, i, Py_NewRef(states[i]->worker));
    }
    PyMem_Free(self->found);
    self->found = found;
    Py_XSETREF(self->workers, workers);
    return 0;
}

Py_ssize_t forecasts_in_time(Forecasts *self, const Asked *asked, WorkerState *const *states,
                             Py_ssize_t count, Py_ssize_t *places) {
    TRY(foretell_all(self, asked, states, count));
    double best = self->found[0].chance;
    for (Py_ssize_t i = 1; i < count; i++) {
        best = self->found[i].chance < best ? self->found[i].chance : best;
    }
    if (self->hopeless != Py_None && 1.0 - best < self->least) {
        PyErr_SetNone(self->hopeless);
        return -1;
    }
    Py_ssize_t in_time = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (self->found[i].chance <= best + self->slack) {
            places[in_time++] = i;
        }
    }
    if (in_time == 0) {
        PyErr_SetString(PyExc_ArithmeticError, "the chance to miss a target is no number");
    }
    return in_time == 0 ? -1 : in_time;
}

/* Return the arguments of core.routing.decision.Forecast, a new tuple; NULL with MemoryError set. */
static PyObject *forecast_tuple(const Forecasts *self, Py_ssize_t place) {
    const Forecasted *at = self->found + place;
    return Py_BuildValue("Oddddd", PyTuple_GET_ITEM(self->workers, place),
                         self->waited_ms + at->coming_ms, at->tpot_ms, self->waited_ms, at->own_ms,
                         at->chance);
}

static Py_ssize_t count_of(const Forecasts *self) {
    return self->workers == NULL ? 0 : PyTuple_GET_SIZE(self->workers);
}

static PyObject *forecasts_all(Forecasts *self, PyObject *ignored) {
    (void)ignored;
    Py_ssize_t count = count_of(self);
    PyObject *all = PyTuple_New(count);
    for (Py_ssize_t i = 0; all != NULL && i < count; i++) {
        PyObject *one = forecast_tuple(self, i);
        set_made(&all, i, one);
    }
    return all;
}

static PyObject *forecasts_at(Forecasts *self, PyObject *worker) {
    PyObject *workers = Py_XNewRef(self->workers), *found = NULL;
    int same = 0;
    for (Py_ssize_t i = 0; same == 0 && i < count_of(self) && workers == self->workers; i++) {
        same = PyObject_RichCompareBool(PyTuple_GET_ITEM(workers, i), worker, Py_EQ);
        if (same > 0 && workers == self->workers) { /* who compares may do anything */
            found = forecast_tuple(self, i);
        }
    }
    Py_XDECREF(workers);
    return found == NULL && !PyErr_Occurred() ? Py_NewRef(Py_None) : found;
}

METHODS(forecasts_methods,
    METHOD_NOARGS("all", forecasts_all),
    METHOD_O("at", forecasts_at))

PyTypeObject forecasts_type = {
    TYPE("Forecasts", Forecasts, forecasts),
    .tp_methods = forecasts_methods,
};
