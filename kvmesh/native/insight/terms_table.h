/* Made of kvmesh/core/cost/terms.py by `make config`: not to be edited. */
#pragma once

#define WORKER_TERMS(TERM) \
    TERM(overlap_blocks, overlap_of(asked, state)) \
    TERM(uncached_tokens, uncached_of(asked, state)) \
    TERM(prefill_tokens, state->loads->prefill_tokens) \
    TERM(active_blocks, state->loads->active_blocks) \
    TERM(decode_blocks, decode_blocks_of(asked, state)) \
    TERM(active_requests, state->loads->active_requests) \
    TERM(outstanding_tokens, state->loads->prompt_tokens) \
    TERM(capacity_blocks, state->capacity_blocks) \
    TERM(wait_ms, wait_ms_of(asked, state)) \
    TERM(ms_per_token, rate_of(asked, state)) \
    TERM(memory_wait_ms, memory_wait_ms_of(asked, state)) \
    TERM(failure_share, state->failure_share) \
    TERM(failure_ms, failure_ms_of(asked, state)) \
    TERM(lost_tokens, lost_tokens_of(asked, state)) \
    TERM(slow_ms, slow_ms_of(asked, state)) \
    TERM(fetch_ms, prepares(asked, state) ? state->fetch_ms : 0.0) \
    TERM(adapter_ms, prepares(asked, state) ? state->adapter_ms : 0.0)

#define REQUEST_TERMS(TERM) \
    TERM(block_size, asked->block_size) \
    TERM(prompt_tokens, asked->prompt_tokens) \
    TERM(request_blocks, asked->request_blocks) \
    TERM(step_tokens, asked->step_tokens) \
    TERM(arrivals_per_ms, asked->arrivals_per_ms)

#define SEEN_TERMS(TERM) \
    TERM(waiting_requests, seen->waiting) \
    TERM(cache_usage, seen->usage) \
    TERM(cached_blocks, seen->cached)

#define CANDIDATE_FIELDS(COUNT, NUMBER, TEXT) \
    COUNT(block_size) \
    COUNT(prompt_tokens) \
    COUNT(overlap_blocks) \
    COUNT(request_blocks) \
    COUNT(uncached_tokens) \
    COUNT(prefill_tokens) \
    COUNT(active_blocks) \
    COUNT(decode_blocks) \
    COUNT(active_requests) \
    COUNT(outstanding_tokens) \
    COUNT(waiting_requests) \
    NUMBER(cache_usage) \
    COUNT(capacity_blocks) \
    COUNT(cached_blocks) \
    NUMBER(wait_ms) \
    NUMBER(ms_per_token) \
    NUMBER(step_tokens) \
    NUMBER(arrivals_per_ms) \
    NUMBER(memory_wait_ms) \
    NUMBER(failure_share) \
    NUMBER(failure_ms) \
    NUMBER(lost_tokens) \
    NUMBER(slow_ms) \
    NUMBER(fetch_ms) \
    TEXT(fetch_from) \
    NUMBER(adapter_ms)

/* Of a candidate: these, and its worker's name before. */
enum { CANDIDATE_ARGUMENTS = 27 };
