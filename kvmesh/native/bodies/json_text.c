/* Strings, numbers and whole values of strict JSON (RFC 8259, UTF-8), and how they are passed over.
 *
 * Stricter than it need be where that is simpler: what is refused here, another parser reads.
 */
#include "bodies/json_text.h"

/* Digits that a double, and so every reader of JSON, keeps as they are. */
#define SURE_DIGITS 15
/* Zeros behind the point that are still written as such, not as an exponent. */
#define SURE_ZEROS 3

/* A hexadecimal digit's value and 1, else 0. */
static const uint8_t hex[256] = {
    ['0'] = 1,  ['1'] = 2,  ['2'] = 3,  ['3'] = 4,  ['4'] = 5,  ['5'] = 6,  ['6'] = 7,  ['7'] = 8,
    ['8'] = 9,  ['9'] = 10, ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16,
    ['A'] = 11, ['B'] = 12, ['C'] = 13, ['D'] = 14, ['E'] = 15, ['F'] = 16,
};

/* Return the number of 4 hexadecimal digits, -1 when they are not. */
static int32_t four_digits(const uint8_t *at, const uint8_t *end) {
    if (end - at < 4) {
        return -1;
    }
    int32_t a = hex[at[0]], b = hex[at[1]], c = hex[at[2]], d = hex[at[3]];
    return a && b && c && d ? (a - 1) << 12 | (b - 1) << 8 | (c - 1) << 4 | (d - 1) : -1;
}

/* Return behind the escape whose backslash is before `at`; NULL for a lone half of a pair, too. */
static const uint8_t *skip_escape(const uint8_t *at, const uint8_t *end) {
    if (at == end) {
        return NULL;
    }
    if (*at != 'u') {
        return memchr("\"\\/bfnrt", *at, 8) ? at + 1 : NULL;
    }
    int32_t unit = four_digits(at + 1, end);
    at += 5;
    if (unit < 0 || (unit >= 0xdc00 && unit <= 0xdfff)) {
        return NULL;
    }
    if (unit >= 0xd800 && unit <= 0xdbff) {
        if (end - at < 6 || at[0] != '\\' || at[1] != 'u') {
            return NULL;
        }
        unit = four_digits(at + 2, end);
        return unit >= 0xdc00 && unit <= 0xdfff ? at + 6 : NULL;
    }
    return at;
}

static int follows(uint8_t byte) {
    return (byte & 0xc0) == 0x80;
}

/* Return behind the character beyond ASCII at `at`; NULL for what is no UTF-8 (RFC 3629). */
static const uint8_t *skip_wide(const uint8_t *at, const uint8_t *end) {
    uint8_t lead = at[0];
    if (lead < 0xe0) {
        return lead >= 0xc2 && end - at >= 2 && follows(at[1]) ? at + 2 : NULL;
    }
    if (lead < 0xf0) {
        if (end - at < 3 || !follows(at[1]) || !follows(at[2]) ||
            (lead == 0xe0 && at[1] < 0xa0) || (lead == 0xed && at[1] > 0x9f)) {
            return NULL;
        }
        return at + 3;
    }
    if (lead > 0xf4 || end - at < 4 || !follows(at[1]) || !follows(at[2]) || !follows(at[3]) ||
        (lead == 0xf0 && at[1] < 0x90) || (lead == 0xf4 && at[1] > 0x8f)) {
        return NULL;
    }
    return at + 4;
}

const uint8_t *json_string(const uint8_t *at, const uint8_t *end, int *found) {
    for (;;) {
        at = json_plain(at, end);
        if (at == end) {
            return NULL;
        }
        if (*at == '"') {
            return at;
        }
        if (*at == '\\') {
            *found |= JSON_ESCAPE;
            do {
                at = skip_escape(at + 1, end);
            } while (at != NULL && at < end && *at == '\\');
        } else if (*at >= 0x80) {
            *found |= JSON_WIDE;
            do {
                at = skip_wide(at, end);
            } while (at != NULL && at < end && *at >= 0x80);
        } else {
            return NULL;
        }
        NEED_OR_NULL(at);
    }
}

const uint8_t *json_escape(const uint8_t *at, uint32_t *codepoint) {
    switch (*at) {
    case 'b':
        *codepoint = '\b';
        return at + 1;
    case 'f':
        *codepoint = '\f';
        return at + 1;
    case 'n':
        *codepoint = '\n';
        return at + 1;
    case 'r':
        *codepoint = '\r';
        return at + 1;
    case 't':
        *codepoint = '\t';
        return at + 1;
    case 'u':
        break;
    default:
        *codepoint = *at;
        return at + 1;
    }
    uint32_t unit = (uint32_t)four_digits(at + 1, at + 5);
    if (unit < 0xd800 || unit > 0xdbff) {
        *codepoint = unit;
        return at + 5;
    }
    uint32_t low = (uint32_t)four_digits(at + 7, at + 11);
    *codepoint = 0x10000 + ((unit - 0xd800) << 10 | (low - 0xdc00));
    return at + 11;
}

static const uint8_t *digits(const uint8_t *at, const uint8_t *end) {
    while (at < end && *at >= '0' && *at <= '9') {
        at++;
    }
    return at;
}

/* Whether a fraction is written as the shortest that gives its number: `12.5`, `0.0`, not `1.50`. */
static int is_shortest(const uint8_t *whole, const uint8_t *point, const uint8_t *end) {
    const uint8_t *first = point + 1;
    if (end - whole - 1 > SURE_DIGITS || (end[-1] == '0' && end - first > 1)) {
        return 0;
    }
    while (first < end && *first == '0') {
        first++;
    }
    return *whole != '0' || first == end || first - point - 1 <= SURE_ZEROS;
}

static const uint8_t *skip_number(const uint8_t *at, const uint8_t *end, int *found) {
    const uint8_t *start = at;
    at += *at == '-';
    const uint8_t *whole = at, *behind = digits(at, end);
    if (behind == whole || (*whole == '0' && behind - whole > 1)) {
        return NULL;
    }
    at = behind;
    int strange = at - whole > SURE_DIGITS;
    if (at < end && *at == '.') {
        at = digits(behind + 1, end);
        if (at == behind + 1) {
            return NULL;
        }
        strange = !is_shortest(whole, behind, at);
    } else if (whole > start && *whole == '0') {
        strange = 1;
    }
    if (at < end && (*at | 0x20) == 'e') {
        at++;
        at += at < end && (*at == '+' || *at == '-');
        const uint8_t *exponent = at;
        at = digits(at, end);
        if (at == exponent) {
            return NULL;
        }
        strange = 1;
    }
    *found |= strange ? JSON_STRANGE : 0;
    return at;
}

static const uint8_t *skip_list(const uint8_t *at, const uint8_t *end, int depth, int *found) {
    JsonWalk walk = json_walk(at, end);
    int more;
    while ((more = json_item(&walk)) > 0) {
        walk.at = json_value(walk.at, end, depth, found);
        NEED_OR_NULL(walk.at);
    }
    return more < 0 ? NULL : walk.at;
}

static const uint8_t *skip_object(const uint8_t *at, const uint8_t *end, int depth, int *found) {
    JsonWalk walk = json_walk(at, end);
    int more;
    while ((more = json_member(&walk, found)) > 0) {
        walk.at = json_value(walk.at, end, depth, found);
        NEED_OR_NULL(walk.at);
    }
    return more < 0 ? NULL : walk.at;
}

const uint8_t *json_value(const uint8_t *at, const uint8_t *end, int depth, int *found) {
    if (at == end) {
        return NULL;
    }
    switch (*at) {
    case '"':
        at = json_string(at + 1, end, found);
        return at == NULL ? NULL : at + 1;
    case '{':
        return depth > 0 ? skip_object(at + 1, end, depth - 1, found) : NULL;
    case '[':
        return depth > 0 ? skip_list(at + 1, end, depth - 1, found) : NULL;
    case 't':
        return json_is(at, end, "true", 4) ? at + 4 : NULL;
    case 'f':
        return json_is(at, end, "false", 5) ? at + 5 : NULL;
    case 'n':
        return json_is(at, end, "null", 4) ? at + 4 : NULL;
    default:
        return skip_number(at, end, found);
    }
}
