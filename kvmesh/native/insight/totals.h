/* Totals: exact sums of what became of requests, TokenCounts and Histogram: cheap adds at the end
 * of a request.
 */
#pragma once

#include "insight/records.h"

typedef struct {
    PyObject_HEAD
    PyObject *bounds; /* tuple of floats, rising */
    double *upper;
    long long *counts; /* `size` + 1 of them */
    Py_ssize_t size;
    double total;
} Histogram;

typedef struct {
    PyObject_HEAD
    long long prompt, reported, predicted, cached, saved; /* of answers */
    double saved_s;
} TokenCounts;

typedef struct {
    int32_t number;
    uint32_t count;
} SketchBin;

/* Sorted by number. */
typedef struct {
    SketchBin *bins;
    Py_ssize_t count, room;
} Sketch;

/* core.insight.traffic.TrafficSecond */
enum {
    REQUESTS, REFUSED_REQUESTS, FINISHED_REQUESTS, FAILED_REQUESTS, PROMPT_TOKENS_SUM,
    FORESEEN_TOKENS, PREDICTED_TOKENS, REPORTED_TOKENS, CACHED_TOKENS, SHADOWED_TOKENS,
    ROUND_ROBIN_TOKENS, OVERRIDDEN, OWN_REQUESTS, OWN_PROMPT_TOKENS, OWN_PREDICTED_TOKENS,
    OWN_ROUND_ROBIN_TOKENS, OWN_REPORTED_TOKENS, OWN_CACHED_TOKENS, ANSWERED_TOKENS, SAVED_TOKENS,
    SAVED_US, SECOND_COUNTS
};

typedef struct {
    long long second, counts[SECOND_COUNTS];
    Sketch ttft, round_robin_ttft;
} Second;

typedef struct {
    PyObject_HEAD
    Histogram *ttft_s, *itl_s, *duration_s, *prompt_sizes, *output_sizes;
    long long prompt_tokens, output_tokens, best_tokens, predicted_tokens;
    Second *seconds; /* oldest first: those of the last `kept_s` with anything in them */
    Py_ssize_t kept_s, count, room;
} Totals;

#define GAMMA 1.05 /* ratio of neighbouring bins of a sketch */

extern PyTypeObject histogram_type, token_counts_type, totals_type;

void histogram_observe(Histogram *histogram, double value);

/* Count a request as decided, or as refused, now; -1 with an error set: MemoryError, or a time that
 * is no number.
 */
int totals_decided(Totals *totals, double now);

/* Count a request that ended, all that is known without its shadow. `told`: its engine said what it had
 * cached of the prompt. -1 with an error set.
 */
int totals_ended(Totals *totals, TokenCounts *tokens, const Record *record, int told);
