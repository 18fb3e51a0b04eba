/* Usage that a client did not ask for, left out of its stream.
 *
 * The event with which an OpenAI stream reports usage has no choices: `"choices":[]` and an object
 * `"usage"`, on one line. Neither can stand in text that a model wrote, whose quotes are escaped. One
 * with a choice passes as it is.
 */
#define _GNU_SOURCE
#include "base/shell.h"
#include "wire/sse.h"
#include <string.h>

/* Tell whether a line has a key whose value begins with `with`, which is one or two bytes. */
static int has_member(const char *at, const char *end, const char *key, const char *with) {
    size_t size = strlen(key), length = strlen(with);
    while ((at = memmem(at, (size_t)(end - at), key, size)) != NULL) {
        at += size;
        const char *value = at + (at < end && *at == ' ');
        if ((size_t)(end - value) >= length && memcmp(value, with, length) == 0) {
            return 1;
        }
    }
    return 0;
}

/* Return behind an end of line, which is CR LF, LF or CR; NULL where there is none. */
static const char *behind_line(const char *at, const char *end) {
    if (at < end && *at == '\r') {
        return at + 1 + (at + 1 < end && at[1] == '\n');
    }
    return at < end && *at == '\n' ? at + 1 : NULL;
}

/* Return behind the event of one line that begins at `at` if it reports usage alone, else NULL. */
static const char *behind_usage(const char *at, const char *end) {
    if (end - at < 7 || memcmp(at, "data: {", 7) != 0) {
        return NULL;
    }
    const char *line = at + 7;
    while (line < end && *line != '\n' && *line != '\r') {
        line++;
    }
    const char *blank = behind_line(line, end);
    const char *behind = blank == NULL ? NULL : behind_line(blank, end);
    int found = behind != NULL && has_member(at, line, "\"usage\":", "{") &&
                has_member(at, line, "\"choices\":", "[]");
    return found ? behind : NULL;
}

/* Return behind the line at `at`, the end at most. */
static const char *next_line(const char *at, const char *end) {
    while (at < end && *at != '\n' && *at != '\r') {
        at++;
    }
    const char *next = behind_line(at, end);
    return next == NULL ? end : next;
}

/* Copy events but for those that report usage alone, `to` NULL: copy nothing; return the bytes left. */
static Py_ssize_t put_events(char *to, const char *at, const char *end) {
    Py_ssize_t left = 0;
    int begins = 1; /* behind a blank line: an event of several lines stays whole */
    while (at < end) {
        const char *next = begins ? behind_usage(at, end) : NULL;
        if (next != NULL) {
            at = next;
            continue;
        }
        begins = *at == '\n' || *at == '\r';
        next = next_line(at, end);
        if (to != NULL) {
            memcpy(to + left, at, (size_t)(next - at));
        }
        left += next - at;
        at = next;
    }
    return left;
}

PyObject *without_usage(PyObject *passed) {
    const char *at = PyBytes_AS_STRING(passed), *end = at + PyBytes_GET_SIZE(passed);
    Py_ssize_t left = put_events(NULL, at, end);
    if (left == end - at) {
        return passed;
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, left);
    if (made != NULL) {
        put_events(PyBytes_AS_STRING(made), at, end);
    }
    Py_DECREF(passed);
    return made;
}

/* Copy chunks likewise, empty ones left out, and what follows them; return the bytes left. */
static Py_ssize_t put_chunks(char *to, const char *at, const char *end) {
    const char *content = at;
    Py_ssize_t size, done = 0;
    char line[16];
    for (; at < end && (size = chunk_size(at, end, &content)) > 0; at = content + size + 2) {
        Py_ssize_t left = put_events(NULL, content, content + size);
        int digits = left == 0 ? 0 : snprintf(line, sizeof line, "%zx\r\n", (size_t)left);
        if (to != NULL && left > 0) {
            memcpy(to + done, line, (size_t)digits);
            put_events(to + done + digits, content, content + size);
            memcpy(to + done + digits + left, "\r\n", 2);
        }
        done += left == 0 ? 0 : digits + left + 2;
    }
    if (to != NULL) {
        memcpy(to + done, at, (size_t)(end - at));
    }
    return done + (end - at);
}

PyObject *chunks_without_usage(PyObject *chunks) {
    const char *at = PyBytes_AS_STRING(chunks), *end = at + PyBytes_GET_SIZE(chunks);
    PyObject *made = PyBytes_FromStringAndSize(NULL, put_chunks(NULL, at, end));
    if (made != NULL) {
        put_chunks(PyBytes_AS_STRING(made), at, end);
    }
    return made;
}
