/* A cost formula's program and what it runs over: one request, and the terms of workers. */
#pragma once

#include "insight/terms_table.h"
#include "speeds/speeds.h"

/* Workers are looked at so many at a time: a step is decoded once for all of them, and its columns
 * stay in the first-level cache.
 */
enum { CHUNK = 64, DEPTH = 16, KEPT = 8, MOST_WEIGHTS = 32 };

/* Terms that are one number for all workers. */
#define ONE(name, value) +1
enum { FACTS = 0 REQUEST_TERMS(ONE), TERMS = 0 WORKER_TERMS(ONE) };
#undef ONE

/* One request: what its costs depend on besides the worker. */
typedef struct {
    uint64_t question;
    SharingKeys keys;
    Speeds *speeds;
    long long block_size, prompt_tokens, request_blocks, output_blocks;
    double now, fleet, step_tokens, arrivals_per_ms, answer_tokens, margin;
    double facts[FACTS], weights[MOST_WEIGHTS];
    Py_ssize_t weights_count;
    int prefilled; /* another worker computes the prompt */
} Asked;

/* Write one term of `count` workers; -1 with an error set. */
typedef int (*Fill)(const Asked *asked, WorkerState *const *states, Py_ssize_t count,
                    double *column);

typedef struct {
    const char *name;
    Fill fill;
} Term;

extern const Term terms[TERMS];
extern const char *const facts[FACTS];

typedef struct {
    char operation; /* '+', '-', '*', '/', 'M'ax, 'm'in; 't'erm, 'f'act, 'w'eight, 'n'umber;
                     * '=': keep a number, 'k'ept */
    int place;      /* among terms, facts, weights, what is kept */
    double number;
} Step;

typedef struct {
    Step *steps;
    Py_ssize_t count;
} Program;

typedef struct {
    PyObject_HEAD
    Program price, failure;
    Py_ssize_t weights; /* at least so many are needed */
} Formula;

extern PyTypeObject formula_type;

/* Read a tuple of core.cost.expression.Step into a program that is to be freed; -1 with an error
 * set.
 */
int read_program(Formula *self, PyObject *from, Program *program);

/* Return the number of another question; overlaps noted under an older one do not count. */
uint64_t next_question(void);

/* Write the facts from the request's own fields. */
void asked_facts(Asked *asked);

/* Write what the formula gives each worker, failure included; -1 with an error set. */
int formula_costs(const Formula *self, const Asked *asked, WorkerState *const *states,
                  Py_ssize_t count, double *costs);

/* Return how many tokens of the overlap are expected to be evicted before the request's turn comes.
 *
 * What is prefilled until then takes the blank blocks, then evicts what no request holds: each such block
 * equally likely, for in which order the engine does is not known here. What requests hold stays, what was
 * sent there lately, and what is brought from slower memory is no loss. 0 where the engine's size is not
 * known.
 */
double lost_tokens_of(const Asked *asked, const WorkerState *state);

/* Blocks of the prompt that a worker has. */
static inline long long overlap_of(const Asked *asked, const WorkerState *state) {
    return state->asked == asked->question ? state->overlap : 0;
}

/* Learned time of an uncached token, ms. */
static inline double rate_of(const Asked *asked, const WorkerState *state) {
    return asked->fleet * state->prefill->factor;
}

static inline double wait_ms_of(const Asked *asked, const WorkerState *state) {
    const Loads *loads = state->loads;
    return loads->prefill_tokens
               ? loads_wait_ms(loads, rate_of(asked, state), asked->now, asked->step_tokens)
               : 0.0;
}

/* KV blocks in use with this request, where shared ones count once. */
static inline long long decode_blocks_of(const Asked *asked, const WorkerState *state) {
    return state->loads->active_blocks + asked->request_blocks -
           loads_shared_blocks(state->loads, &asked->keys, overlap_of(asked, state));
}

/* Return whether a worker has to bring cached blocks or to load the request's adapter first. */
static inline int prepares(const Asked *asked, const WorkerState *state) {
    return state->prepared_in == asked->question;
}

/* core.cost.terms.Candidate.uncached_tokens */
long long uncached_of(const Asked *asked, const WorkerState *state);

/* Return how much of the prompt was sent to a worker lately. */
static inline long long believed_at(const Asked *asked, const WorkerState *state) {
    return state->routed_in == asked->question ? state->routed : 0;
}

/* Return how much of the prompt a worker's events tell of, whether they count or not. */
static inline long long told_at(const Asked *asked, const WorkerState *state) {
    return state->told_in == asked->question ? state->told : 0;
}

/* core.cost.terms.Candidate.slow_ms */
static inline double slow_ms_of(const Asked *asked, const WorkerState *state) {
    return state->prefill->slow_ms * asked->answer_tokens;
}

/* Return what this request loses by failures there on average, ms: what has gone by when it fails, and its
 * whole prefill elsewhere.
 */
double failure_ms_of(const Asked *asked, const WorkerState *state);

/* Return how long the request will wait for others to leave, ms: 0 below the margin, and where the
 * worker's capacity is not known. With an error set it is no matter what.
 */
double memory_wait_ms_of(const Asked *asked, const WorkerState *state);
