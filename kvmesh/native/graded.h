/* Which of a prompt's blocks stand for it where not all may: core.blocks.graded, compiled. */
#ifndef KVMESH_GRADED_H
#define KVMESH_GRADED_H

#include <stdint.h>

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

/* Return the number, from 0, among graded blocks of the sharing key of that number, from 1. */
static inline long long key_place(long long number) {
    return number <= 2 ? 4 * number - 1 : number + 5;
}

#endif
