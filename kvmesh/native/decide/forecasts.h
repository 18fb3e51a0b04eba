/* What is to be expected of a request with targets: core.routing.choice.slo_judge. */
#pragma once

#include "decide/costs.h"

/* How far predicted times are off. */
typedef struct {
    PyObject_HEAD
    double samples, mean, squares; /* of the logarithms of actual over predicted times */
} TimeErrors;

/* Return the chance, 0..1, that what is predicted takes longer than `limit_ms`. */
double chance_above(const TimeErrors *self, double predicted_ms, double limit_ms);

/* core.routing.decision.Forecast of one worker. */
typedef struct {
    double coming_ms; /* until its first token, from now on */
    double tpot_ms, own_ms, chance;
} Forecasted;

/* One request's at each worker, once it was asked about. */
typedef struct {
    PyObject_HEAD
    Formula *coming, *own; /* times in ms, no weights */
    TimeErrors *ttft_errors, *tpot_errors;
    PyObject *hopeless; /* an exception, raised where each worker's chance is too small; None: never */
    PyObject *workers;  /* tuple of their names, NULL: not asked yet */
    Forecasted *found;  /* of each, of PyMem_Malloc */
    double ttft_ms, tpot_ms; /* targets, NAN: none */
    double waited_ms, slack, least;
} Forecasts;

extern PyTypeObject time_errors_type, forecasts_type;

/* Foretell what becomes of the request at `count` workers, and write the places of those least likely to miss
 * a target, and of those hardly likelier to; return how many there are, -1 with an error set.
 */
Py_ssize_t forecasts_in_time(Forecasts *self, const Asked *asked, WorkerState *const *states,
                             Py_ssize_t count, Py_ssize_t *places);
