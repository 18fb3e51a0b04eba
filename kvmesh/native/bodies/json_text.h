/* Strict JSON, value by value: what each function accepts, the strict parser accepts too. */
#pragma once

#include "base/base.h"

#include <string.h>

/* Set in `*found` by what was passed. */
enum {
    JSON_ESCAPE = 1,  /* a string has an escape */
    JSON_WIDE = 2,    /* a string has a byte beyond ASCII */
    JSON_STRANGE = 4, /* a number may be out of range, or is not written as we would write it */
};

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && \
    !defined(KVMESH_SCALAR)
#define JSON_WIDTH 16
/* Signed: bytes below a blank and those beyond ASCII are what is less than a blank. */
typedef int8_t JsonBytes __attribute__((vector_size(JSON_WIDTH)));
typedef uint64_t JsonHalves __attribute__((vector_size(JSON_WIDTH)));
#endif

static inline const uint8_t *json_blanks(const uint8_t *at, const uint8_t *end) {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) {
        at++;
    }
    return at;
}

/* Return the first byte of a string that is a quote, a backslash, a control character or (with
 * `wide`) beyond ASCII; `end` when there is none. */
static inline const uint8_t *json_plain(const uint8_t *at, const uint8_t *end) {
#ifdef JSON_WIDTH
    while (end - at >= JSON_WIDTH) {
        JsonBytes bytes;
        memcpy(&bytes, at, sizeof bytes);
        JsonHalves stops = (JsonHalves)((bytes == '"') | (bytes == '\\') | (bytes < ' '));
        if (stops[0] | stops[1]) {
            return stops[0] ? at + __builtin_ctzll(stops[0]) / 8
                            : at + 8 + __builtin_ctzll(stops[1]) / 8;
        }
        at += JSON_WIDTH;
    }
#endif
    while (at < end && *at >= ' ' && *at < 0x80 && *at != '"' && *at != '\\') {
        at++;
    }
    return at;
}

/* Return the closing quote of the string whose first byte is `at`, NULL for what is refused. */
const uint8_t *json_string(const uint8_t *at, const uint8_t *end, int *found);

/* Return behind the value that begins at `at`, without blanks before it; NULL for what is refused,
 * also when more than `depth` objects and lists are nested. */
const uint8_t *json_value(const uint8_t *at, const uint8_t *end, int depth, int *found);

/* Read the escape behind the backslash at `at`, which `json_string` accepted: return behind it. */
const uint8_t *json_escape(const uint8_t *at, uint32_t *codepoint);

/* Write a code point as UTF-8, return its bytes. */
static inline int json_utf8(uint32_t codepoint, uint8_t out[4]) {
    if (codepoint < 0x80) {
        out[0] = (uint8_t)codepoint;
        return 1;
    }
    if (codepoint < 0x800) {
        out[0] = (uint8_t)(0xc0 | codepoint >> 6);
        out[1] = (uint8_t)(0x80 | (codepoint & 0x3f));
        return 2;
    }
    if (codepoint < 0x10000) {
        out[0] = (uint8_t)(0xe0 | codepoint >> 12);
        out[1] = (uint8_t)(0x80 | (codepoint >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (codepoint & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | codepoint >> 18);
    out[1] = (uint8_t)(0x80 | (codepoint >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (codepoint >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (codepoint & 0x3f));
    return 4;
}

/* Walks the members of an object or the items of a list, blanks skipped. */
typedef struct {
    const uint8_t *at, *end;
    const uint8_t *key; /* of a member, between its quotes */
    long key_size;
    int escaped; /* the key has an escape: what it says is not what stands there */
    int first;
} JsonWalk;

/* Begin with the byte behind the opening bracket. */
static inline JsonWalk json_walk(const uint8_t *at, const uint8_t *end) {
    return (JsonWalk){.at = at, .end = end, .first = 1};
}

/* Step to what comes next, or behind the closing byte: 1, 0 at the end, -1 refused. */
static inline int json_step(JsonWalk *walk, uint8_t closing) {
    const uint8_t *at = json_blanks(walk->at, walk->end), *end = walk->end;
    if (at == end) {
        return -1;
    }
    if (*at == closing) {
        walk->at = at + 1;
        return 0;
    }
    if (!walk->first) {
        if (*at != ',') {
            return -1;
        }
        at = json_blanks(at + 1, end);
    }
    walk->first = 0;
    walk->at = at;
    return at == end ? -1 : 1;
}

/* Step to the next member's value, or behind the closing brace: 1, 0 at the end, -1 refused. The
 * caller moves `at` behind the value. */
static inline int json_member(JsonWalk *walk, int *found) {
    int step = json_step(walk, '}');
    if (step < 1) {
        return step;
    }
    const uint8_t *at = walk->at, *end = walk->end;
    if (*at != '"') {
        return -1;
    }
    int in_key = 0;
    const uint8_t *close = json_string(at + 1, end, &in_key);
    NEED(close);
    walk->key = at + 1;
    walk->key_size = (long)(close - walk->key);
    walk->escaped = in_key & JSON_ESCAPE;
    *found |= in_key;
    at = json_blanks(close + 1, end);
    if (at == end || *at != ':') {
        return -1;
    }
    walk->at = json_blanks(at + 1, end);
    return walk->at == end ? -1 : 1;
}

/* Step to the next item, or behind the closing bracket: 1, 0 at the end, -1 refused. */
static inline int json_item(JsonWalk *walk) { return json_step(walk, ']'); }

static inline int json_key_is(const JsonWalk *walk, const char *name, size_t size) {
    return walk->key_size == (long)size && !memcmp(walk->key, name, size);
}
#define JSON_KEY_IS(walk, name) json_key_is(walk, name, sizeof(name) - 1)

static inline int json_is(const uint8_t *at, const uint8_t *end, const char *word, long size) {
    return end - at >= size && !memcmp(at, word, (size_t)size);
}
