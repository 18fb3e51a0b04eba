/* What is known of one worker: Ratio and WorkerState, the same attributes and numbers as
 * tests/reference/workers/relative_speed.py and kvmesh/_native.pyi. None of them can be part of a cycle, so
 * the collector does not know them.
 */
#pragma once

#include "loads/loads.h"

#include <math.h>

typedef struct {
    PyObject_HEAD
    double ms, tokens, squares, error, factor, slow_ms;
} Ratio;

typedef struct {
    PyObject_HEAD
    PyObject *worker, *info, *report, *gaps;
    Loads *loads;
    Ratio *prefill;
    long long capacity_blocks, blank_blocks;
    long long own_tokens; /* a block of its own has so many, 0: as many as the router's */
    double failure_share, lost_ms;
    uint64_t asked;    /* number of the last question in which it had any overlap */
    long long overlap; /* blocks in that question */
    uint64_t routed_in; /* number of the last question of which anything was sent there lately */
    long long routed;   /* blocks in that question */
    uint64_t told_in; /* number of the last question of which its events tell anything */
    long long told;   /* blocks in that question */
    uint64_t prepared_in; /* number of the last question in which it has to bring or load anything */
    long long fetched, worth, slower; /* in that question: core.cost.terms.Brought: tokens from another
                                       * worker, what bringing is worth in tokens, blocks of the overlap
                                       * in slower memory */
    double fetch_ms, adapter_ms;
} WorkerState;

extern PyTypeObject ratio_type, worker_state_type;

/* Add a sample; what was there counts half after `half_life` further tokens. */
static inline void ratio_add(Ratio *self, double ms, double tokens, double half_life) {
    volatile double half = 0.5; /* clang makes exp2 of the constant: another last bit than Python's */
    double keep = pow(half, tokens / half_life);
    self->ms = self->ms * keep + ms;
    self->tokens = self->tokens * keep + tokens;
    self->squares = self->squares * keep * keep + tokens * tokens;
}

/* Go half of the way to the fleet's mean, half as sure. */
static inline void ratio_uncertainty(Ratio *self, double fleet_ms_per_token) {
    self->ms = 0.25 * (self->ms + fleet_ms_per_token * self->tokens);
    self->tokens *= 0.5;
    self->squares *= 0.5;
    if (self->tokens < 1.0) {
        self->ms = self->tokens = self->squares = 0.0;
        self->factor = 1.0;
    }
}
