/* Numbers in a row: see arrays.h. */
#include "base/arrays.h"

int blocks_reserve(Blocks *self, Py_ssize_t more) {
    if (more <= self->room - self->count && self->items != NULL) {
        return 0;
    }
    Py_ssize_t room = self->room > 32 ? self->room * 2 : 64;
    room = room - self->count < more ? self->count + more : room;
    uint64_t *grown = room > PY_SSIZE_T_MAX / 16
                          ? NULL
                          : PyMem_RawRealloc(self->items, (size_t)room * sizeof *grown);
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->items = grown;
    self->room = room;
    return 0;
}

int u32s_reserve(U32s *self, Py_ssize_t more) {
    if (more <= self->room - self->count && self->items != NULL) {
        return 0;
    }
    size_t room = (size_t)self->count + (size_t)more + (size_t)self->room / 2 + 16;
    uint32_t *grown = PyMem_RawRealloc(self->items, room * sizeof *grown);
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->items = grown;
    self->room = (Py_ssize_t)room;
    return 0;
}
