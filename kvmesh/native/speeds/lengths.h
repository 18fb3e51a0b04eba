/* How long answers become: OutputLengths, the same numbers as its naive model in
 * tests/reference/routing/output_lengths.py. It cannot be part of a cycle, so the collector does not
 * know it.
 */
#pragma once

#include "base/recent.h"

enum { FAMILIES = 3 }; /* of family_tokens */

/* What core.routing.output_lengths.OutputForecast has, and the families of the prompt, the widest
 * first.
 */
typedef struct {
    double tokens;
    long long samples, family_tokens;
    int families;
    struct {
        long long tokens;
        uint64_t key;
    } family[FAMILIES];
} Forecast;

typedef struct {
    double tokens;
    long long samples;
} Mean;

typedef struct {
    PyObject_HEAD
    PyObject *forecast_type, *statistics_type;
    Mean all, errors, mean_errors;
    long long depths[FAMILIES]; /* blocks that have each family's tokens */
    Recent families; /* by use; `count` and `amount` of each are its mean */
    uint32_t most;
} Lengths;

extern PyTypeObject lengths_type;

/* Return how many hashes of a prompt are looked at, at most. */
static inline long long lengths_depth(const Lengths *self) {
    return self->depths[FAMILIES - 1];
}

/* Write what `forecast` returns of a prompt of so many blocks, of whose hashes at least
 * `lengths_depth`, or all, are there. It cannot fail and returns 0.
 */
int lengths_forecast(const Lengths *self, const uint64_t *hashes, Py_ssize_t blocks,
                     Forecast *out);

/* Return the families as (tokens, hash) of each; NULL with MemoryError set. */
PyObject *forecast_families(const Forecast *self);

/* Take a whole answer of so many tokens; -1 with MemoryError set and nothing learned. */
int lengths_learn(Lengths *self, const Forecast *foreseen, long long tokens);
