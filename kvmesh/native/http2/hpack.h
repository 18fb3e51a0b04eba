/* HPACK, the decoder's side: header blocks of one connection, in their order. Source: RFC 7541. */
#pragma once

#include "base/base.h"

/* Bytes of the dynamic table, each entry counted with HPACK_ENTRY more than its texts: what a peer may
 * use that was told no other number. */
#define HPACK_TABLE_BYTES 4096
#define HPACK_ENTRY 32
#define HPACK_ENTRIES (HPACK_TABLE_BYTES / HPACK_ENTRY)

typedef struct {
    PyObject *ring[HPACK_ENTRIES]; /* tuples of two bytes; the newest is at `newest` */
    unsigned newest, count;
    size_t bytes, limit;
} Hpack;

/* What became of a header block. */
enum { HPACK_READ, HPACK_BROKEN, HPACK_TOO_LARGE, HPACK_FAILED /* an exception is set */ };

void hpack_init(Hpack *self);
void hpack_free(Hpack *self);

/* Append the fields of a whole block to `fields`, a list: tuples of (name, value). `most`: of names,
 * values and HPACK_ENTRY a field. After anything but HPACK_READ the table must not be used again. */
int hpack_decode(Hpack *self, const uint8_t *at, size_t size, size_t most, PyObject *fields);

/* Return what Huffman codes stand for, a new bytes; NULL without an exception set: they stand for
 * nothing. */
PyObject *huffman_decode(const uint8_t *at, size_t size);
void huffman_ready(void);
