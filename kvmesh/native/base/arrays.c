/* Numbers in a row: see arrays.h. */
#include "base/arrays.h"

#include <string.h>

int array_resize(void *place, size_t count, size_t size, void *(*resize)(void *, size_t)) {
    void *array;
    memcpy(&array, place, sizeof array);
    void *resized = count > PY_SSIZE_T_MAX / size ? NULL : resize(array, count * size);
    if (resized == NULL) {
        return no_memory();
    }
    memcpy(place, &resized, sizeof resized);
    return 0;
}

int blocks_reserve(Blocks *self, Py_ssize_t more) {
    if (more <= self->room - self->count && self->items != NULL) {
        return 0;
    }
    Py_ssize_t room = self->room > 32 ? self->room * 2 : 64;
    room = room - self->count < more ? self->count + more : room;
    if (RAW_RESIZE(self->items, room > PY_SSIZE_T_MAX / 16 ? SIZE_MAX : (size_t)room) < 0) {
        return -1;
    }
    self->room = room;
    return 0;
}

int u32s_reserve(U32s *self, Py_ssize_t more) {
    if (more <= self->room - self->count && self->items != NULL) {
        return 0;
    }
    size_t room = (size_t)self->count + (size_t)more + (size_t)self->room / 2 + 16;
    if (RAW_RESIZE(self->items, room) < 0) {
        return -1;
    }
    self->room = (Py_ssize_t)room;
    return 0;
}
