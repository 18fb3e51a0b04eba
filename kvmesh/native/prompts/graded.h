/* Which of a prompt's blocks stand for it where not all may: core.blocks.graded, compiled. */
#pragma once

#include "base/base.h"

/* Return how many graded blocks the first `blocks` have, without the last one. */
static inline long long graded_count(long long blocks) {
    if (blocks <= 32) {
        return blocks / 4;
    }
    if (blocks <= 256) {
        return 8 + (blocks - 32) / 16;
    }
    if (blocks <= 1024) {
        return 22 + (blocks - 256) / 64;
    }
    return 34 + (blocks - 1024) / 256;
}

/* Return where the graded block of that number, from 1, stands: blocks from the root. */
static inline long long graded_depth(long long number) {
    if (number <= 8) {
        return 4 * number;
    }
    if (number <= 22) {
        return 32 + 16 * (number - 8);
    }
    if (number <= 34) {
        return 256 + 64 * (number - 22);
    }
    return 1024 + 256 * (number - 34);
}

/* Return how many hashes `grade` makes of all those of a prompt. */
static inline long long graded_length(long long blocks) {
    long long count = graded_count(blocks);
    return count + (graded_depth(count) != blocks);
}

/* Write the graded ones of a prompt's first `known` hashes, root first, to `kept`, where there is room
 * for `graded_length(known)`; it has so many `blocks`. Return how many. The last block is among them
 * where it is known.
 */
static inline long long grade(const uint64_t *hashes, long long known, long long blocks,
                              uint64_t *kept) {
    known = known < blocks ? known : blocks;
    long long count = graded_count(known);
    for (long long i = 0; i < count; i++) {
        kept[i] = hashes[graded_depth(i + 1) - 1];
    }
    if (known && known == blocks && graded_depth(count) != blocks) {
        kept[count++] = hashes[blocks - 1];
    }
    return count;
}

/* Return how many sharing keys the first `blocks` have. */
static inline long long key_count(long long blocks) {
    if (blocks <= 256) {
        return blocks / 16;
    }
    if (blocks <= 1024) {
        return 16 + (blocks - 256) / 64;
    }
    return 28 + (blocks - 1024) / 256;
}

/* Return where the sharing key of that number, from 1, stands; 0 for number 0. */
static inline long long key_depth(long long number) {
    if (number <= 16) {
        return 16 * number;
    }
    if (number <= 28) {
        return 256 + 64 * (number - 16);
    }
    return 1024 + 256 * (number - 28);
}

/* Return for how many blocks the sharing key of that number, from 1, stands. */
static inline long long key_blocks(long long number) {
    return number <= 16 ? 16 : number <= 28 ? 64 : 256;
}

/* Return the number, from 0, among graded blocks of the sharing key of that number, from 1. */
static inline long long key_place(long long number) {
    return number <= 2 ? 4 * number - 1 : number + 5;
}
