/* Slots of one engine, see prompt_slots.h. */
#include "beliefs/prompt_slots.h"

#include <string.h>

#define LAPSE_S 600.0 /* whose end nobody told of for so long is over */
#define LIKE 10 /* a slot is taken whose common beginning is more than this part of a prompt */

/* Return how many blocks two prompts have in common: a block's hash stands for all before it. */
static Py_ssize_t common(const PromptSlot *slot, const uint64_t *blocks, Py_ssize_t count) {
    Py_ssize_t low = 0, high = slot->count < count ? (Py_ssize_t)slot->count : count;
    BISECT(low, high, slot->blocks[middle] == blocks[middle]);
    return low;
}

/* Append the first block that only this slot has; -1 with MemoryError set. */
static int leave(const PromptSlots *self, const PromptSlot *slot, Py_ssize_t kept, Blocks *gone) {
    for (uint32_t i = 0; i < self->count; i++) {
        const PromptSlot *other = self->slots + i;
        Py_ssize_t same = other == slot ? 0 : common(other, slot->blocks, slot->count);
        kept = same > kept ? same : kept;
    }
    if (kept < (Py_ssize_t)slot->count) {
        TRY(blocks_reserve(gone, 1));
        gone->items[gone->count++] = slot->blocks[kept];
    }
    return 0;
}

/* Return the slot used least recently of those that are free, if any is; of several the last, as the
 * engine does. */
static PromptSlot *oldest(const PromptSlots *self) {
    PromptSlot *found = self->slots;
    for (uint32_t i = 1; i < self->count; i++) {
        PromptSlot *slot = self->slots + i;
        int freer = (found->taken != 0) - (slot->taken != 0);
        found = freer > 0 || (freer == 0 && slot->used_s <= found->used_s) ? slot : found;
    }
    return found;
}

int slots_resize(PromptSlots *self, uint32_t count, Blocks *gone) {
    count = count < MOST_SLOTS ? count : MOST_SLOTS;
    while (self->count > count) {
        PromptSlot *last = oldest(self);
        TRY(leave(self, last, 0, gone));
        PyMem_RawFree(last->blocks);
        self->count--;
        memmove(last, last + 1, (size_t)(self->slots + self->count - last) * sizeof *last);
    }
    if (self->count < count) {
        TRY(RAW_RESIZE(self->slots, count));
        for (; self->count < count; self->count++) {
            self->slots[self->count] = (PromptSlot){.used_s = -1.0};
        }
    }
    return 0;
}

/* Return the slot that a prompt takes; `kept`: of what it holds so many blocks stay. */
static PromptSlot *choose(const PromptSlots *self, const uint64_t *blocks, Py_ssize_t count,
                          Py_ssize_t *kept) {
    PromptSlot *found = NULL;
    *kept = count / LIKE;
    for (uint32_t i = 0; i < self->count; i++) {
        Py_ssize_t same = common(self->slots + i, blocks, count);
        if (same > *kept && !self->slots[i].taken) {
            *kept = same;
            found = self->slots + i;
        }
    }
    if (found == NULL) {
        found = oldest(self);
        *kept = common(found, blocks, count);
    }
    return found;
}

int slots_take(PromptSlots *self, const uint64_t *blocks, Py_ssize_t count, double now, Blocks *gone) {
    Py_ssize_t kept;
    for (uint32_t i = 0; i < self->count; i++) {
        self->slots[i].taken = now - self->slots[i].used_s < LAPSE_S ? self->slots[i].taken : 0;
    }
    PromptSlot *slot = choose(self, blocks, count, &kept);
    if (count > (Py_ssize_t)slot->room) {
        TRY(RAW_RESIZE(slot->blocks, count));
        slot->room = (uint32_t)count;
    }
    TRY(leave(self, slot, kept, gone));
    slot->fresh = !slot->count;
    slot->before = kept == (Py_ssize_t)slot->count ? slot->count : 0;
    slot->tail_before = slot->tail;
    memcpy(slot->blocks + kept, blocks + kept, (size_t)(count - kept) * sizeof *blocks);
    slot->count = (uint32_t)count;
    slot->used_s = now;
    slot->tail = 0;
    slot->taken = ++self->taken;
    return 0;
}

void slots_leave(PromptSlots *self, uint64_t taken, double now) {
    for (uint32_t i = 0; i < self->count; i++) {
        if (self->slots[i].taken == taken) {
            self->slots[i].taken = 0;
            self->slots[i].used_s = now;
        }
    }
}

PromptSlot *slots_find(const PromptSlots *self, const uint64_t *blocks, Py_ssize_t count) {
    for (uint32_t i = 0; i < self->count; i++) {
        PromptSlot *slot = self->slots + i;
        if (count && (Py_ssize_t)slot->count == count &&
            slot->blocks[count - 1] == blocks[count - 1]) {
            return slot;
        }
    }
    return NULL;
}

Py_ssize_t slots_expect(const PromptSlots *self, const uint64_t *blocks, Py_ssize_t count,
                        long long *tail) {
    Py_ssize_t kept;
    const PromptSlot *slot = choose(self, blocks, count, &kept);
    *tail = kept == (Py_ssize_t)slot->count ? slot->tail : 0;
    return kept;
}

int slots_full(const PromptSlots *self) {
    for (uint32_t i = 0; i < self->count; i++) {
        EXPECT(self->slots[i].count);
    }
    return 1;
}

void slots_clear(PromptSlots *self) {
    for (uint32_t i = 0; i < self->count; i++) {
        PyMem_RawFree(self->slots[i].blocks);
    }
    PyMem_RawFree(self->slots);
    *self = (PromptSlots){0};
}
