/* The terms of workers that a compiled cost formula may name. A term is a function here and a line in
 * `terms`; what they mean is in core.cost.terms.Candidate.
 */
#include "decide/costs.h"

#define MEMORY_MARGIN 0.95 /* share of an engine's KV blocks above which it is taken to queue or preempt */

static uint64_t questions;

uint64_t next_question(void) { return ++questions; }

static inline long long overlap_at(const Asked *asked, const WorkerState *state) {
    return state->asked == asked->question ? state->overlap : 0;
}

static inline double rate_of(const Asked *asked, const WorkerState *state) {
    return asked->fleet * state->prefill->factor;
}

#define TERM(name, value)                                                                         \
    static int fill_##name(const Asked *asked, WorkerState *const *states, Py_ssize_t count,      \
                           double *column) {                                                      \
        (void)asked;                                                                              \
        for (Py_ssize_t i = 0; i < count; i++) {                                                  \
            const WorkerState *state = states[i];                                                 \
            column[i] = (double)(value);                                                          \
        }                                                                                         \
        return 0;                                                                                 \
    }

long long load_tokens_of(const Asked *asked, const WorkerState *state) {
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
    long long uncached = asked->prompt_tokens - overlap_at(asked, state) * asked->block_size;
    if (prepares(asked, state)) {
        uncached -= state->fetched;
        uncached = (uncached > 0 ? uncached : 0) + state->worth + load_tokens_of(asked, state);
    }
    return uncached > 0 ? uncached : 0;
}

static inline double wait_at(const Asked *asked, const WorkerState *state) {
    return state->loads->prefill_tokens
               ? loads_wait_ms(state->loads, rate_of(asked, state), asked->now, asked->step_tokens)
               : 0.0;
}

double failure_ms_of(const Asked *asked, const WorkerState *state) {
    double tokens = (double)asked->prompt_tokens + asked->step_tokens;
    return state->failure_share != 0.0
               ? state->failure_share * (state->lost_ms + asked->fleet * tokens)
               : 0.0;
}

double lost_tokens_of(const Asked *asked, const WorkerState *state) {
    const Loads *loads = state->loads;
    long long overlap = overlap_at(asked, state);
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

TERM(overlap_blocks, overlap_at(asked, state))
TERM(uncached_tokens, uncached_of(asked, state))
TERM(prefill_tokens, state->loads->prefill_tokens)
TERM(active_blocks, state->loads->active_blocks)
TERM(active_requests, state->loads->active_requests)
TERM(outstanding_tokens, state->loads->prompt_tokens)
TERM(capacity_blocks, state->capacity_blocks)
TERM(ms_per_token, rate_of(asked, state))
TERM(wait_ms, wait_at(asked, state))
TERM(failure_share, state->failure_share)
TERM(failure_ms, failure_ms_of(asked, state))
TERM(slow_ms, slow_ms_of(asked, state))
TERM(lost_tokens, lost_tokens_of(asked, state))

static int fill_decode_blocks(const Asked *asked, WorkerState *const *states, Py_ssize_t count,
                              double *column) {
    for (Py_ssize_t i = 0; i < count; i++) {
        const Loads *loads = states[i]->loads;
        long long shared =
            loads_shared_blocks(loads, &asked->keys, overlap_at(asked, states[i]));
        column[i] = (double)(loads->active_blocks + asked->request_blocks - shared);
    }
    return 0;
}

int memory_wait_of(const Asked *asked, const WorkerState *state, long long decode_blocks,
                   double *ms) {
    long long needed = decode_blocks + asked->output_blocks + state->loads->expected_blocks;
    double usage = (double)needed / (double)state->capacity_blocks;
    *ms = 0.0;
    if (usage > MEMORY_MARGIN) {
        const WorkerSpeed *known = speeds_worker(asked->speeds, state->worker);
        if (known == NULL) {
            return -1;
        }
        *ms = (usage - MEMORY_MARGIN) * speeds_residence_ms(asked->speeds, known);
    }
    return 0;
}

/* The same, with what the request shares there counted once. */
static int wait_in_full(const Asked *asked, const WorkerState *state, double *ms) {
    long long shared = loads_shared_blocks(state->loads, &asked->keys, overlap_at(asked, state));
    long long blocks = state->loads->active_blocks + asked->request_blocks - shared;
    return memory_wait_of(asked, state, blocks, ms);
}

/* Only workers that are almost full are asked in full. */
static int fill_memory_wait_ms(const Asked *asked, WorkerState *const *states, Py_ssize_t count,
                               double *column) {
    long long blocks = asked->request_blocks + asked->output_blocks;
    for (Py_ssize_t i = 0; i < count; i++) {
        WorkerState *state = states[i];
        const Loads *loads = state->loads;
        long long most = loads->active_blocks + loads->expected_blocks + blocks;
        column[i] = 0.0;
        if (state->capacity_blocks &&
            (double)most / (double)state->capacity_blocks > MEMORY_MARGIN &&
            wait_in_full(asked, state, column + i) < 0) {
            return -1;
        }
    }
    return 0;
}

#define ENTRY(name) {#name, fill_##name}

const Term terms[] = {
    ENTRY(overlap_blocks), ENTRY(uncached_tokens), ENTRY(prefill_tokens),
    ENTRY(active_blocks), ENTRY(decode_blocks), ENTRY(active_requests),
    ENTRY(outstanding_tokens), ENTRY(capacity_blocks), ENTRY(ms_per_token),
    ENTRY(wait_ms), ENTRY(memory_wait_ms), ENTRY(failure_share), ENTRY(failure_ms),
    ENTRY(lost_tokens), ENTRY(slow_ms),
};
_Static_assert(sizeof terms / sizeof *terms == TERMS, "costs.h counts the terms");

const char *const facts[FACTS] = {
    [BLOCK_SIZE] = "block_size",
    [PROMPT_TOKENS] = "prompt_tokens",
    [REQUEST_BLOCKS] = "request_blocks",
    [STEP_TOKENS] = "step_tokens",
    [ARRIVALS_PER_MS] = "arrivals_per_ms",
};

