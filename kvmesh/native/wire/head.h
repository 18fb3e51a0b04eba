/* The headers of one message, kept as the bytes that came, and the names that are asked for. */
#pragma once

#include "base/base.h"

/* One header: where its name, in lower case, and its value begin in the head's bytes. */
typedef struct {
    uint32_t hash, name, name_size, value, value_size;
} HeadLine;

typedef struct {
    PyObject_VAR_HEAD
    uint32_t count, room; /* lines; room: of bytes behind them */
    HeadLine lines[];     /* and then the bytes */
} Head;

/* Names of headers that somebody asks for. */
typedef struct {
    PyObject_HEAD
    PyObject **names; /* bytes by hash, NULL for a free place */
    uint32_t *hashes;
    uint32_t mask;
    PyObject *prefixes; /* a tuple of bytes: what begins with one is asked for, too */
} Names;

extern PyTypeObject head_type, names_type;
extern PyMethodDef native_take_methods[];

/* Prepare what reads requests; always 0. */
int take_ready(void);

/* Return a head with room for so many lines and bytes; NULL with MemoryError. */
Head *head_new(Py_ssize_t lines, Py_ssize_t bytes);

static inline char *head_bytes(const Head *head) {
    return (char *)(head->lines + Py_SIZE(head));
}

/* Return a number of a name in lower case: equal for equal ones. */
uint32_t name_hash(const char *name, size_t size);
