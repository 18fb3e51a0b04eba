/* The bytes of server-sent events and of the chunks that carry them: what one is, where it ends. */
#define _GNU_SOURCE
#include "wire/sse.h"
#include <string.h>

#define ORDINARY "data: {"
#define DONE "data: [DONE]"

static int starts(const char *at, Py_ssize_t size, const char *with, Py_ssize_t length) {
    return size >= length && memcmp(at, with, (size_t)length) == 0;
}

/* Tell whether each `"usage"` in an event is null, so that decoding would find none. */
static int lacks_usage(const char *at, Py_ssize_t size) {
    const char *end = at + size, *found = at;
    static const char word[] = "\"usage\"";
    if (memchr(at, '\\', (size_t)size) != NULL) {
        return memmem(at, (size_t)size, word, sizeof word - 1) == NULL;
    }
    while ((found = memmem(found, (size_t)(end - found), word, sizeof word - 1)) != NULL) {
        found += sizeof word - 1;
        const char *value = found + (end - found > 1 && found[1] == ' ') + 1;
        if (end - value < 4 || *found != ':' || memcmp(value, "null", 4) != 0) {
            return 0;
        }
    }
    return 1;
}

enum { HAS_ERROR = 1, HAS_USAGE = 2, HAS_TOOL = 4, HAS_REASON = 8 };

/* Say which word begins at a byte of an event, if any does. A reason that is null tells nothing. */
static int find_word(const char *at, const char *end) {
    static const struct {
        const char *word;
        size_t size;
        int flag;
    } words[] = {
        {"\"error\"", 7, HAS_ERROR},
        {"\"usage\"", 7, HAS_USAGE},
        {"\"name\":", 7, HAS_TOOL},
        {"_reason\":", 9, HAS_REASON},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if ((size_t)(end - at) >= words[i].size && memcmp(at, words[i].word, words[i].size) == 0) {
            const char *value = at + words[i].size;
            value += value < end && *value == ' ';
            return *at != '_' || (value < end && *value == '"') ? words[i].flag : 0;
        }
    }
    return 0;
}

static int may_begin(char first, char second) {
    return first == '"' ? second == 'e' || second == 'u' || second == 'n' : first == '_' && second == 'r';
}

#define WIDE 16
typedef uint8_t Wide __attribute__((vector_size(WIDE)));

/* Tell whether a word may begin at one of `WIDE` bytes, of which `WIDE` + 1 can be read. */
static int may_hold(const char *at) {
    Wide first, second;
    memcpy(&first, at, WIDE);
    memcpy(&second, at + 1, WIDE);
    Wide quoted = (Wide)(first == '"') & (Wide)((second == 'e') | (second == 'u') | (second == 'n'));
    Wide either = quoted | ((Wide)(first == '_') & (Wide)(second == 'r'));
    uint64_t halves[2];
    memcpy(halves, &either, WIDE);
    return (halves[0] | halves[1]) != 0;
}

/* Say which of the words an event has, in one pass: 16 bytes at a time, as most have none. */
static int find_words(const char *at, Py_ssize_t size) {
    const char *end = at + size;
    int found = 0;
    while (end - at > 1) {
        Py_ssize_t step = end - at > WIDE ? WIDE : end - at - 1;
        if (step < WIDE || may_hold(at)) {
            for (const char *next = at; next < at + step; next++) {
                if (may_begin(next[0], next[1])) {
                    found |= find_word(next, end);
                }
            }
        }
        at += step;
    }
    return found;
}

/* Say what an event of one line, without its end, is. */
int event_kind(const char *at, Py_ssize_t size) {
    if (starts(at, size, ORDINARY, TEXT_LENGTH(ORDINARY))) {
        int found = find_words(at, size);
        if (found == 0) {
            return EVENT_TOKEN;
        }
        if ((found & HAS_ERROR) != 0) {
            return EVENT_RARE;
        }
        if ((found & HAS_REASON) != 0) {
            return EVENT_REASON;
        }
        return (found & HAS_TOOL) != 0 || !lacks_usage(at, size) ? EVENT_USAGE : EVENT_TOKEN;
    }
    return size == TEXT_LENGTH(DONE) && memcmp(at, DONE, sizeof DONE - 1) == 0 ? EVENT_END : EVENT_RARE;
}

/* Tell whether nothing but white space follows a last `[DONE]`. */
int ends_in_done(const char *at, Py_ssize_t size) {
    while (size > 0 && (at[size - 1] == ' ' || (at[size - 1] >= '\t' && at[size - 1] <= '\r'))) {
        size--;
    }
    return size >= TEXT_LENGTH(DONE) && memcmp(at + size - TEXT_LENGTH(DONE), DONE, sizeof DONE - 1) == 0;
}

/* Return behind the last blank line, 0 without any. */
Py_ssize_t behind_last_event(const char *at, Py_ssize_t size) {
    for (Py_ssize_t i = size; i > 1; i--) {
        if (at[i - 1] == '\n' && at[i - 2] == '\n') {
            return i;
        }
    }
    return 0;
}

/* Return the size in a plain chunk size line (1 to 6 hexadecimal digits, CRLF) and where it ends, 0 for
 * any other and for that of the last chunk. */
Py_ssize_t chunk_size(const char *at, const char *end, const char **content) {
    Py_ssize_t size = 0;
    for (int digits = 0; digits < 7 && at < end; digits++, at++) {
        char letter = *at;
        if (letter >= '0' && letter <= '9') {
            size = size * 16 + letter - '0';
        } else if ((letter | 32) >= 'a' && (letter | 32) <= 'f') {
            size = size * 16 + (letter | 32) - 'a' + 10;
        } else {
            *content = at + 2;
            return digits > 0 && end - at > 1 && at[0] == '\r' && at[1] == '\n' ? size : 0;
        }
    }
    return 0;
}

/* Count the events of one chunk if they are whole and ordinary; -1 if not. */
Py_ssize_t count_plain_events(const char *at, Py_ssize_t size, int *last, unsigned *kinds) {
    const char *end = at + size;
    Py_ssize_t tokens = 0;
    while (at < end) {
        const char *line = memchr(at, '\n', (size_t)(end - at));
        int whole = line != NULL && line + 1 < end && line[1] == '\n';
        *last = whole ? event_kind(at, line - at) : EVENT_RARE;
        if (*last == EVENT_RARE) {
            return -1;
        }
        tokens += *last != EVENT_END;
        *kinds |= 1u << *last;
        at = line + 2;
    }
    return tokens;
}
