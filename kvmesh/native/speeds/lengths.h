/* How long answers become: OutputLengths, the same numbers as its naive model in
 * tests/reference/routing/output_lengths.py. It cannot be part of a cycle, so the collector does not
 * know it.
 */
#ifndef KVMESH_LENGTHS_H
#define KVMESH_LENGTHS_H

#include "base/base.h"

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

/* One family, in a list from the one that has waited longest for an answer to the newest. */
typedef struct {
    uint64_t key;
    Mean mean;
    uint32_t older, newer; /* of an unused one: `newer` is the next unused one */
} Family;

typedef struct {
    PyObject_HEAD
    PyObject *forecast_type, *statistics_type;
    Mean all, errors, mean_errors;
    long long depths[FAMILIES]; /* blocks that have each family's tokens */
    Family *families;
    uint32_t *places; /* open addressing: 1 + number of the family, 0: free; twice as many */
    uint32_t room;    /* for families: 0 or a power of two */
    uint32_t used;    /* of them, at present or before */
    uint32_t shift;
    uint32_t count, oldest, newest, unused, most;
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

/* Take a whole answer of so many tokens; -1 with MemoryError set and nothing learned. */
int lengths_learn(Lengths *self, const Forecast *foreseen, long long tokens);

#endif
