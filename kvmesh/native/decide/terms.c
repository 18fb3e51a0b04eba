/* The terms of workers that a compiled cost formula may name. A term is a function here and a line in
 * `terms`; what they mean is in core.cost.terms.Candidate.
 */
#include "decide/costs.h"

#define MEMORY_MARGIN 0.95 /* share of an engine's KV blocks above which it is taken to queue or preempt */

static uint64_t questions;

uint64_t next_question(void) { return ++questions; }

/* Return the prompt tokens that could be computed while a worker loads the adapter. */
static long long load_tokens_of(const Asked *asked, const WorkerState *state) {
    double rate = rate_of(asked, state);
    if (!prepares(asked, state) || !(rate > 0.0)) {
        return 0;
    }
    double tokens = state->adapter_ms / rate;
    return tokens >= (double)MOST_TOKENS ? MOST_TOKENS : tokens > 0.0 ? (long long)tokens : 0;
}

long long uncached_of(const Asked *asked, const WorkerState *state) {
    if (asked->prefilled) {
        return 0;
    }
    long long uncached = asked->prompt_tokens - overlap_of(asked, state) * asked->block_size;
    if (prepares(asked, state)) {
        uncached -= state->fetched;
        uncached = (uncached > 0 ? uncached : 0) + state->worth + load_tokens_of(asked, state);
    }
    return uncached > 0 ? uncached : 0;
}

double failure_ms_of(const Asked *asked, const WorkerState *state) {
    double tokens = (double)asked->prompt_tokens + asked->step_tokens;
    return state->failure_share != 0.0
               ? state->failure_share * (state->lost_ms + asked->fleet * tokens)
               : 0.0;
}

double lost_tokens_of(const Asked *asked, const WorkerState *state) {
    const Loads *loads = state->loads;
    long long overlap = overlap_of(asked, state);
    overlap -= prepares(asked, state) ? state->slower : 0;
    if (!overlap || !loads->prefill_tokens || !state->capacity_blocks) {
        return 0.0;
    }
    double pending = (double)loads->prefill_tokens / (double)asked->block_size;
    double evicted = pending - (double)state->blank_blocks;
    if (!(evicted > 0.0)) {
        return 0.0;
    }
    long long idle = state->capacity_blocks - state->blank_blocks - loads->active_blocks;
    double evictable = (double)idle + pending, share = evicted / (evictable > 1.0 ? evictable : 1.0);
    long long held = loads_shared_blocks(loads, &asked->keys, overlap);
    long long routed = believed_at(asked, state);
    held = routed > held ? routed : held;
    long long at_risk = overlap > held ? overlap - held : 0;
    return (double)asked->block_size * ((double)at_risk * (share < 1.0 ? share : 1.0));
}

/* With what is shared counted twice, which is sooner said: mostly there is room enough. */
static int may_wait(const Asked *asked, const WorkerState *state) {
    long long most = state->loads->active_blocks + state->loads->expected_blocks +
                     asked->request_blocks + asked->output_blocks;
    return (double)most / (double)state->capacity_blocks > MEMORY_MARGIN;
}

double memory_wait_ms_of(const Asked *asked, const WorkerState *state) {
    if (!state->capacity_blocks || !may_wait(asked, state)) {
        return 0.0;
    }
    long long needed =
        decode_blocks_of(asked, state) + asked->output_blocks + state->loads->expected_blocks;
    double usage = (double)needed / (double)state->capacity_blocks;
    if (!(usage > MEMORY_MARGIN)) {
        return 0.0;
    }
    const WorkerSpeed *known = speeds_worker(asked->speeds, state->worker);
    return known == NULL ? -1.0
                         : (usage - MEMORY_MARGIN) * speeds_residence_ms(asked->speeds, known);
}

#define TERM(name, value)                                                                         \
    static int fill_##name(const Asked *asked, WorkerState *const *states, Py_ssize_t count,      \
                           double *column) {                                                      \
        (void)asked;                                                                              \
        for (Py_ssize_t i = 0; i < count; i++) {                                                  \
            const WorkerState *state = states[i];                                                 \
            column[i] = (double)(value);                                                          \
        }                                                                                         \
        return PyErr_Occurred() ? -1 : 0;                                                         \
    }
WORKER_TERMS(TERM)

#define ENTRY(name, value) {#name, fill_##name},
const Term terms[TERMS] = {WORKER_TERMS(ENTRY)};

#define NAME(name, value) #name,
const char *const facts[FACTS] = {REQUEST_TERMS(NAME)};
