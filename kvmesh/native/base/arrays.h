/* Numbers in a row, in memory that stays from call to call. All zeros is an empty one; its items are
 * for PyMem_RawFree.
 */
#pragma once

#include "base/base.h"

/* Give the array at `place`, a pointer to its pointer, room for `count` items of `size` bytes; -1 with
 * MemoryError set, and it is as it was.
 */
int array_resize(void *place, size_t count, size_t size, void *(*resize)(void *, size_t));

/* Of memory that PyMem_Free gives back, and of PyMem_RawFree's. */
#define RESIZE(array, count) \
    array_resize(&(array), (size_t)(count), sizeof *(array), PyMem_Realloc)
#define RAW_RESIZE(array, count) \
    array_resize(&(array), (size_t)(count), sizeof *(array), PyMem_RawRealloc)

/* Give a full array twice its room, which is `least` at first; 0, or -1 with MemoryError set. */
#define GROW_BY(resize, array, count, room, least) \
    ((count) < (room) ? 0 \
     : resize(array, (room) ? 2 * (size_t)(room) : (least)) < 0 ? -1 \
     : ((room) = (room) ? 2 * (room) : (least), 0))
#define GROW(...) GROW_BY(RESIZE, __VA_ARGS__)
#define RAW_GROW(...) GROW_BY(RAW_RESIZE, __VA_ARGS__)

/* Set `low` to the first place before `high` of which a condition on `middle` does not hold, or to
 * `high`: it holds of all places before.
 */
#define BISECT(low, high, condition) \
    while ((low) < (high)) { \
        Py_ssize_t middle = ((low) + (high)) >> 1; \
        if (condition) { \
            (low) = middle + 1; \
        } else { \
            (high) = middle; \
        } \
    }

typedef struct {
    uint64_t *items;
    Py_ssize_t count, room;
} Blocks;

typedef struct {
    uint32_t *items;
    Py_ssize_t count, room;
} U32s;

/* Make room for so many more, there is an array even for none; -1 with MemoryError set. */
int blocks_reserve(Blocks *self, Py_ssize_t more);
int u32s_reserve(U32s *self, Py_ssize_t more);

/* Append a number; -1 with MemoryError set. */
static inline int push_u32(U32s *to, uint32_t number) {
    TRY(u32s_reserve(to, 1));
    to->items[to->count++] = number;
    return 0;
}

/* Numbers that Python gave: those of a buffer of u64s, or a copy of others. */
typedef struct {
    const uint64_t *at;
    Py_ssize_t count;
    Py_buffer view;
    uint64_t *copied;
} GivenU64s;

/* Read a buffer of u64s, without a copy, or any iterable of ints; -1 with an error set. To be closed even
 * then.
 */
int u64s_read(GivenU64s *self, PyObject *given);
void u64s_close(GivenU64s *self);
