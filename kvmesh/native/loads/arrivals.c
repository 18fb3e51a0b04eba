/* Arrivals: a decayed count of requests over the equally decayed time in which they came. */
#include "base/shell.h"
#include "loads/sequences.h"

#include <math.h>

#define HALF_LIFE_S 10.0
#define WARM_UP_S 0.5

static double count_per_ms; /* of a count that nothing was lost of */

int arrivals_ready(void) {
    volatile double two = 2.0; /* the same logarithm as Python's, not the compiler's */
    count_per_ms = log(two) / HALF_LIFE_S / 1000.0;
    return PyType_Ready(&arrivals_type);
}

static double kept_count(const Arrivals *self, double now) {
    double passed_s = now - self->last_s;
    return passed_s > 0.0 ? self->count * exp2(-passed_s / HALF_LIFE_S) : self->count;
}

void arrivals_fold(Arrivals *self, double now) {
    if (self->count == 0.0) {
        self->first_s = self->last_s = now;
    }
    self->count = kept_count(self, now) + 1.0;
    self->last_s = self->last_s > now ? self->last_s : now;
}

double arrivals_per_ms(const Arrivals *self, double now) {
    double kept = kept_count(self, now);
    double seen_s = (self->last_s > now ? self->last_s : now) - self->first_s + WARM_UP_S;
    return kept * count_per_ms / (1.0 - exp2(-seen_s / HALF_LIFE_S));
}

static PyObject *call_fold(Arrivals *self, PyObject *given) {
    double now;
    TRY_OR_NULL(read_double(given, &now));
    arrivals_fold(self, now);
    Py_RETURN_NONE;
}

static PyObject *call_per_ms(Arrivals *self, PyObject *given) {
    double now;
    return read_double(given, &now) < 0 ? NULL : PyFloat_FromDouble(arrivals_per_ms(self, now));
}

METHODS(methods,
    METHOD_O("fold", call_fold),
    METHOD_O("per_ms", call_per_ms))

PyTypeObject arrivals_type = {
    PLAIN_TYPE("Arrivals", Arrivals),
    .tp_methods = methods,
};
