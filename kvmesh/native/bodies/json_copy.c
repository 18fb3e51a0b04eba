/* Copies of JSON text as token ids. Text was accepted by `json_value`: every string has its end. */
#include "bodies/json_copy.h"

/* Keys of one object that are compared with each other. */
#define MOST_KEYS 48

typedef struct {
    const uint8_t *at;
    long size;
} Key;

/* Copy a string up to its next quote or backslash, which exists. */
static void copy_plain(Copy *copy) {
    const uint8_t *at = copy->at;
    uint32_t *out = copy->out;
#ifdef JSON_WIDTH
    while (copy->end - at >= JSON_WIDTH) {
        JsonBytes bytes;
        memcpy(&bytes, at, sizeof bytes);
        JsonHalves stops = (JsonHalves)((bytes == '"') | (bytes == '\\'));
        for (int i = 0; i < JSON_WIDTH; i++) {
            out[i] = at[i];
        }
        if (stops[0] | stops[1]) {
            int before = stops[0] ? __builtin_ctzll(stops[0]) / 8
                                  : 8 + __builtin_ctzll(stops[1]) / 8;
            copy->at = at + before;
            copy->out = out + before;
            return;
        }
        at += JSON_WIDTH;
        out += JSON_WIDTH;
    }
#endif
    while (*at != '"' && *at != '\\') {
        *out++ = *at++;
    }
    copy->at = at;
    copy->out = out;
}

/* Write a code point as JSON text has it: `msgspec.json.encode` escapes no more than it must. */
static uint32_t *write_escaped(uint32_t *out, uint32_t codepoint) {
    static const char letters[] = "uuuuuuuubtnufruuuuuuuuuuuuuuuuuu";
    uint8_t bytes[4];
    if (codepoint == '"' || codepoint == '\\' || codepoint < ' ') {
        *out++ = '\\';
        *out++ = codepoint < ' ' ? (uint32_t)letters[codepoint] : codepoint;
        if (codepoint < ' ' && letters[codepoint] == 'u') {
            *out++ = '0';
            *out++ = '0';
            *out++ = (uint32_t)"0123456789abcdef"[codepoint >> 4];
            *out++ = (uint32_t)"0123456789abcdef"[codepoint & 15];
        }
        return out;
    }
    return write_bytes(out, bytes, json_utf8(codepoint, bytes));
}

/* Copy a string from behind its quote to behind the closing one: its text, or as JSON. */
static void copy_string(Copy *copy, int as_json) {
    for (;;) {
        uint32_t codepoint;
        uint8_t bytes[4];
        copy_plain(copy);
        if (*copy->at == '"') {
            copy->at++;
            return;
        }
        do {
            copy->at = json_escape(copy->at + 1, &codepoint);
            copy->out = as_json ? write_escaped(copy->out, codepoint)
                                : write_bytes(copy->out, bytes, json_utf8(codepoint, bytes));
        } while (*copy->at == '\\');
    }
}

void copy_text(Copy *copy) {
    copy_string(copy, 0);
}

static void copy_json_string(Copy *copy) {
    *copy->out++ = '"';
    copy->at++;
    copy_string(copy, 1);
    *copy->out++ = '"';
}

static int copy_list(Copy *copy) {
    JsonWalk walk = json_walk(copy->at + 1, copy->end);
    *copy->out++ = '[';
    for (int first = 1; json_item(&walk) > 0; first = 0) {
        if (!first) {
            *copy->out++ = ',';
        }
        copy->at = walk.at;
        EXPECT(copy_json(copy));
        walk.at = copy->at;
    }
    *copy->out++ = ']';
    copy->at = walk.at;
    return 1;
}

/* A key that comes twice keeps its place and takes the last value: left to the tokenizer. */
static int copy_object(Copy *copy) {
    Key keys[MOST_KEYS];
    int count = 0, found = 0;
    JsonWalk walk = json_walk(copy->at + 1, copy->end);
    *copy->out++ = '{';
    while (json_member(&walk, &found) > 0) {
        if (walk.escaped || count == MOST_KEYS) {
            return 0;
        }
        for (int i = 0; i < count; i++) {
            if (json_key_is(&walk, (const char *)keys[i].at, (size_t)keys[i].size)) {
                return 0;
            }
        }
        keys[count] = (Key){walk.key, walk.key_size};
        if (count++) {
            *copy->out++ = ',';
        }
        *copy->out++ = '"';
        copy->out = write_bytes(copy->out, walk.key, walk.key_size);
        *copy->out++ = '"';
        *copy->out++ = ':';
        copy->at = walk.at;
        EXPECT(copy_json(copy));
        walk.at = copy->at;
    }
    *copy->out++ = '}';
    copy->at = walk.at;
    return 1;
}

int copy_json(Copy *copy) {
    switch (*copy->at) {
    case '"':
        copy_json_string(copy);
        return 1;
    case '{':
        return copy_object(copy);
    case '[':
        return copy_list(copy);
    default:
        break;
    }
    int found = 0;
    const uint8_t *behind = json_value(copy->at, copy->end, 0, &found);
    if (found & JSON_STRANGE) {
        return 0;
    }
    copy->out = write_bytes(copy->out, copy->at, behind - copy->at);
    copy->at = behind;
    return 1;
}

