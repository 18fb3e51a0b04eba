/* How far predicted times are off, learned, as a distribution: the ratio of actual to predicted time is
 * taken to be log-logistic. Its logarithm has a mean and a spread, decayed over some 700 samples, and
 * heavier tails than a normal one.
 */
#include "base/shell.h"
#include "decide/forecasts.h"

#define FLOOR_MS 20.0 /* added to both times: how an arrival falls into an engine's step is no error */
#define MOST_RATIO 64.0 /* a sample beyond this ratio, or below its inverse, counts as so much: clocks may step */
#define PRIOR_SAMPLES 8.0
#define PRIOR_RATIO 2.0 /* believed before anything was seen: two thirds of times within this factor */
#define LEAST_SPREAD 0.05
#define HALF_LIFE 512.0
#define MOST_EXPONENT 500.0
#define LEAST_CHANCE 0.01
#define MOST_CHANCE 0.99

static double above_floor(double ms) { return (ms > 0.0 ? ms : 0.0) + FLOOR_MS; }

static double spread_of(const TimeErrors *self) {
    double spread = sqrt((self->squares > 0.0 ? self->squares : 0.0) / self->samples);
    return spread > LEAST_SPREAD ? spread : LEAST_SPREAD;
}

/* Return what the spread is of a log-logistic distribution. */
static double scale_of(const TimeErrors *self) { return spread_of(self) * (sqrt(3.0) / M_PI); }

double chance_above(const TimeErrors *self, double predicted_ms, double limit_ms) {
    double distance = log(above_floor(limit_ms) / above_floor(predicted_ms));
    double exponent = (distance - self->mean) / scale_of(self);
    return 1.0 / (1.0 + exp(MOST_EXPONENT < exponent ? MOST_EXPONENT : exponent));
}

static PyObject *time_errors_new(NEW_ARGUMENTS) {
    TRY_OR_NULL(READ_NEW("TimeErrors", "", ""));
    TimeErrors *self = (TimeErrors *)type->tp_alloc(type, 0);
    if (self != NULL) {
        double spread = log(PRIOR_RATIO);
        self->samples = PRIOR_SAMPLES;
        self->mean = 0.0;
        self->squares = PRIOR_SAMPLES * spread * spread;
    }
    return (PyObject *)self;
}

static void time_errors_dealloc(TimeErrors *self) { Py_TYPE(self)->tp_free((PyObject *)self); }

static PyObject *time_errors_learn(TimeErrors *self, ARGUMENTS) {
    double predicted_ms, actual_ms;
    TRY_OR_NULL(READ_PLACED("learn", "dd", "predicted_ms actual_ms", &predicted_ms, &actual_ms));
    if (!isfinite(predicted_ms) || !isfinite(actual_ms)) {
        Py_RETURN_NONE;
    }
    double most = log(MOST_RATIO), ratio = log(above_floor(actual_ms) / above_floor(predicted_ms));
    double keep = pow(0.5, 1.0 / HALF_LIFE);
    ratio = ratio > -most ? ratio : -most;
    ratio = most < ratio ? most : ratio;
    self->samples = self->samples * keep + 1.0;
    double before = ratio - self->mean;
    self->mean += before / self->samples;
    self->squares = self->squares * keep + before * (ratio - self->mean);
    Py_RETURN_NONE;
}

static PyObject *time_errors_chance_above(TimeErrors *self, ARGUMENTS) {
    double predicted_ms, limit_ms;
    TRY_OR_NULL(READ_PLACED("chance_above", "dd", "predicted_ms limit_ms", &predicted_ms,
                            &limit_ms));
    return PyFloat_FromDouble(chance_above(self, predicted_ms, limit_ms));
}

static PyObject *time_errors_longest(TimeErrors *self, ARGUMENTS) {
    double limit_ms, chance;
    TRY_OR_NULL(READ_PLACED("longest", "dd", "limit_ms chance", &limit_ms, &chance));
    chance = chance > LEAST_CHANCE ? chance : LEAST_CHANCE;
    chance = MOST_CHANCE < chance ? MOST_CHANCE : chance;
    double distance = self->mean + scale_of(self) * log(chance / (1.0 - chance));
    return PyFloat_FromDouble(above_floor(limit_ms) * exp(-distance) - FLOOR_MS);
}

static PyObject *time_errors_bias(TimeErrors *self, void *closure) {
    (void)closure;
    return PyFloat_FromDouble(exp(self->mean));
}

static PyObject *time_errors_spread(TimeErrors *self, void *closure) {
    (void)closure;
    return PyFloat_FromDouble(spread_of(self));
}

METHODS(time_errors_methods,
    METHOD_FASTCALL("learn", time_errors_learn),
    METHOD_FASTCALL("chance_above", time_errors_chance_above),
    METHOD_FASTCALL("longest", time_errors_longest))

MEMBERS(time_errors_members, FIELDS(TimeErrors, T_DOUBLE, READONLY, samples))

GETTERS(time_errors_getters,
    {"bias", (getter)time_errors_bias, NULL, NULL, NULL},
    {"spread", (getter)time_errors_spread, NULL, NULL, NULL})

PyTypeObject time_errors_type = {
    TYPE("TimeErrors", TimeErrors, time_errors),
    .tp_members = time_errors_members, .tp_getset = time_errors_getters,
    .tp_methods = time_errors_methods,
};
