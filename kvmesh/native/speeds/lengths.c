/* OutputLengths: see lengths.h. Operations and their order are those of
 * tests/reference/routing/output_lengths.py, which says why, too.
 */
#include "base/names.h"
#include "base/arrays.h"
#include "base/shell.h"
#include "speeds/lengths.h"

#include <math.h>

#define MOST_FAMILIES (1U << 28)
#define PRIOR_SAMPLES 4.0
#define NEWEST_WEIGHT 0.05
#define PLAIN_SAMPLES 20

static const long long family_tokens[FAMILIES] = {64, 256, 1024};

static void add_sample(double *mean, long long *samples, double sample) {
    ++*samples;
    double weight = *samples < PLAIN_SAMPLES ? 1.0 / (double)*samples : NEWEST_WEIGHT;
    *mean += weight * (sample - *mean);
}

/* Fill in what is foreseen by the families. */
static void foresee(const Lengths *self, Forecast *out) {
    out->tokens = self->all.samples ? self->all.tokens : 0.0;
    out->samples = self->all.samples;
    out->family_tokens = 0;
    for (int i = 0; i < out->families && self->all.samples; i++) {
        const RecentEntry *family = recent_find(&self->families, out->family[i].key);
        if (family == NULL) {
            return;
        }
        double samples = (double)family->count;
        out->tokens += samples / (samples + PRIOR_SAMPLES) * (family->amount - out->tokens);
        out->samples = family->count;
        out->family_tokens = out->family[i].tokens;
    }
}

int lengths_forecast(const Lengths *self, const uint64_t *hashes, Py_ssize_t blocks,
                     Forecast *out) {
    out->families = 0;
    for (int i = 0; i < FAMILIES && self->depths[i] <= blocks; i++) {
        out->family[i].tokens = family_tokens[i];
        out->family[i].key = hashes[self->depths[i] - 1];
        out->families++;
    }
    foresee(self, out);
    return 0;
}

int lengths_learn(Lengths *self, const Forecast *foreseen, long long tokens) {
    TRY(recent_reserve(&self->families, FAMILIES));
    double sample = (double)tokens;
    if (foreseen->samples) {
        add_sample(&self->errors.tokens, &self->errors.samples, fabs(foreseen->tokens - sample));
        add_sample(&self->mean_errors.tokens, &self->mean_errors.samples, fabs(self->all.tokens - sample));
    }
    add_sample(&self->all.tokens, &self->all.samples, sample);
    for (int i = 0; i < foreseen->families; i++) {
        RecentEntry *family = recent_find(&self->families, foreseen->family[i].key);
        if (family == NULL) {
            family = recent_add(&self->families, foreseen->family[i].key);
        } else {
            recent_touch(&self->families, family);
        }
        add_sample(&family->amount, &family->count, sample);
    }
    while (self->families.count > self->most) {
        recent_remove(&self->families, self->families.entries + self->families.oldest - 1);
    }
    return 0;
}

/* Find families by blocks of this size; those known are forgotten. -1 with ValueError set. */
static int set_block_size(Lengths *self, long long block_size) {
    REFUSE(block_size < 1, PyExc_ValueError, "block_size is %lld, it must be at least 1",
           block_size);
    for (int i = 0; i < FAMILIES; i++) {
        self->depths[i] = (family_tokens[i] - 1) / block_size + 1;
    }
    recent_clear(&self->families);
    return 0;
}

PyObject *forecast_families(const Forecast *self) {
    PyObject *families = PyTuple_New(self->families);
    for (int i = 0; families != NULL && i < self->families; i++) {
        PyObject *pair = Py_BuildValue("LK", self->family[i].tokens, self->family[i].key);
        set_made(&families, i, pair);
    }
    return families;
}

static PyObject *lengths_forecast_method(Lengths *self, PyObject *hashes) {
    Forecast found;
    GivenU64s given = {.at = NULL};
    PyObject *known = PyObject_CallMethod(hashes, "upto", "L", lengths_depth(self));
    int failed = known == NULL || u64s_read(&given, known) < 0 ||
                 lengths_forecast(self, given.at, given.count, &found) < 0;
    u64s_close(&given);
    Py_XDECREF(known);
    return failed ? NULL
                  : Py_BuildValue("NN", forecast_families(&found),
                                  PyObject_CallFunction(self->forecast_type, "dLL", found.tokens,
                                                        found.samples, found.family_tokens));
}

/* Read the pairs that `forecast` made; -1 with an error set. */
static int read_families(PyObject *pairs, Forecast *out) {
    REFUSE(PyTuple_GET_SIZE(pairs) > FAMILIES, PyExc_ValueError,
           "a prompt has at most %d families, not %zd", FAMILIES, PyTuple_GET_SIZE(pairs));
    out->families = (int)PyTuple_GET_SIZE(pairs);
    for (int i = 0; i < out->families; i++) {
        PyObject *pair = PyTuple_GET_ITEM(pairs, i);
        REFUSE(!PyTuple_Check(pair) || PyTuple_GET_SIZE(pair) != 2, PyExc_TypeError,
               "a family is a tuple of its tokens and its hash");
        out->family[i].tokens = PyLong_AsLongLong(PyTuple_GET_ITEM(pair, 0));
        out->family[i].key = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(pair, 1));
        TRY(no_error());
    }
    return 0;
}

static PyObject *lengths_learn_method(Lengths *self, NAMED_ARGUMENTS) {
    Forecast forecast = {0};
    PyObject *families, *foreseen;
    long long tokens;
    TRY_OR_NULL(READ("learn", "TLO", "families tokens foreseen", &families, &tokens, &foreseen));
    TRY_OR_NULL(read_attribute(foreseen, interned.samples, 'L', &forecast.samples));
    TRY_OR_NULL(read_attribute(foreseen, interned.tokens, 'd', &forecast.tokens));
    if (PyErr_Occurred() || read_families(families, &forecast) < 0 ||
        lengths_learn(self, &forecast, tokens) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *lengths_resize(Lengths *self, PyObject *given) {
    long long block_size = PyLong_AsLongLong(given);
    return none_or_null(PyErr_Occurred() ? -1 : set_block_size(self, block_size));
}

RETURNS(Lengths, lengths_statistics,
        PyObject_CallFunction(self->statistics_type, "nLdd", (Py_ssize_t)self->families.count,
                              self->all.samples, self->errors.tokens, self->mean_errors.tokens))

METHODS(lengths_methods,
    METHOD_O("forecast", lengths_forecast_method),
    METHOD_KEYWORDS("learn", lengths_learn_method),
    METHOD_O("resize", lengths_resize),
    METHOD_NOARGS("statistics", lengths_statistics))

static PyObject *lengths_new(NEW_ARGUMENTS) {
    PyObject *forecast, *statistics;
    long long block_size, most;
    TRY_OR_NULL(READ_NEW("OutputLengths", "OOLL", "forecast statistics block_size max_families",
                         &forecast, &statistics, &block_size, &most));
    REFUSE_OR_NULL(most < 0 || most > MOST_FAMILIES, PyExc_ValueError,
                   "max_families is %lld, it must be from 0 to %u", most, MOST_FAMILIES);
    Lengths *self = (Lengths *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    self->forecast_type = Py_NewRef(forecast);
    self->statistics_type = Py_NewRef(statistics);
    self->most = (uint32_t)most;
    if (set_block_size(self, block_size) < 0) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static void lengths_dealloc(Lengths *self) {
    XDECREF_ALL(self->forecast_type, self->statistics_type);
    recent_free(&self->families);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

PyTypeObject lengths_type = {
    TYPE("OutputLengths", Lengths, lengths),
    .tp_methods = lengths_methods,
};
