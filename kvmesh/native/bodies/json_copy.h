/* JSON text as token ids, one a byte: strings by what they say, values as they would be written. */
#pragma once

#include "bodies/json_text.h"

/* Ids beyond the last that a copy may write. */
#define COPY_SLACK 16

/* From text that `json_value` accepted, to room for as many ids as it has bytes and the slack. */
typedef struct {
    const uint8_t *at, *end;
    uint32_t *out;
} Copy;

static inline uint32_t *write_bytes(uint32_t *out, const void *from, long size) {
    const uint8_t *bytes = from;
    for (long i = 0; i < size; i++) {
        out[i] = bytes[i];
    }
    return out + size;
}
#define WRITE(out, text) write_bytes(out, text, sizeof(text) - 1)

/* Copy a string's text, in UTF-8, from behind its quote to behind the closing one. */
void copy_text(Copy *copy);

/* Copy a value as `msgspec.json.encode` writes it anew: 1, or 0 when that is not known here. */
int copy_json(Copy *copy);
