/* Which prompts an engine keeps that has slots, each of which keeps one prompt: llama.cpp's server.
 *
 * A prompt takes, of the slots that are free, the one that begins most like it, where that is more than a
 * tenth of it (--slot-prompt-similarity), else the one used least recently. What was there beyond their
 * common beginning is gone. Where all are busy it waits, and takes the one that was taken first.
 */
#pragma once

#include "base/arrays.h"

#define MOST_SLOTS 64

/* One prompt's blocks, root first; none: it is empty. */
typedef struct {
    uint64_t *blocks;
    uint32_t count, room;
    double used_s;
    uint64_t taken; /* number of the request that is there now, 0: it is free */
    long long tail; /* tokens behind the blocks: the rest of the prompt, and its answer */
    /* What was there when the prompt came: so many blocks and such a tail, from which it went on; 0 */
    uint32_t before;
    long long tail_before;
    int fresh; /* nothing was */
} PromptSlot;

/* All zeros is an engine without slots. */
typedef struct {
    PromptSlot *slots;
    uint64_t taken; /* number of the last request */
    uint32_t count; /* of slots that it seems to have */
    uint32_t told;  /* of those that it says it has */
} PromptSlots;

/* Give it so many slots; of too many those leave that were used least recently, whose blocks that no
 * other slot has are appended to `gone`. -1 with MemoryError set. O(slots x log(blocks)). */
int slots_resize(PromptSlots *self, uint32_t count, Blocks *gone);

/* Put a prompt's blocks into the slot that the engine takes for it, as request number `self->taken`; what
 * only was in that slot before is appended to `gone`: its first such block, which all others follow. As
 * above, and O(blocks). */
int slots_take(PromptSlots *self, const uint64_t *blocks, Py_ssize_t count, double now, Blocks *gone);

/* Take that a request of that number is over; it may have lost its slot before. */
void slots_leave(PromptSlots *self, uint64_t taken, double now);

/* Return the slot that keeps these blocks and no others, root first; NULL: none does. */
PromptSlot *slots_find(const PromptSlots *self, const uint64_t *blocks, Py_ssize_t count);

/* Return how many blocks of a prompt the slot has that it would take now; `tail`: and how many tokens
 * behind them, where it goes on from all that is there. O(slots x log(blocks)). */
Py_ssize_t slots_expect(const PromptSlots *self, const uint64_t *blocks, Py_ssize_t count,
                        long long *tail);

/* Return whether each slot keeps a prompt. */
int slots_full(const PromptSlots *self);

void slots_clear(PromptSlots *self);
