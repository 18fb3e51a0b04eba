/* One whole request, or an answer's head, out of the bytes of a read: `RequestReader` and
 * `ResponseReader` for what comes as most do.
 *
 * Accepted is a strict part of what llhttp and the checks behind it accept, with the same values. All
 * else, whatever may be wrong with it, is left to them: a request's chunked body, upgrades, several
 * messages in one read or one in several, absolute targets, odd characters.
 */
#define _GNU_SOURCE
#include "base/shell.h"
#include "wire/head.h"
#include <string.h>

enum { MOST_LINES = 128, MOST_DIGITS = 9 };

#define TOKEN 1  /* of a header's name */
#define TARGET 2 /* of a path or its query */
#define VALUE 4  /* of a header's value */
#define HOST 8

static uint8_t classes[256];

static void mark(const char *letters, uint8_t as) {
    for (; *letters; letters++) {
        classes[(uint8_t)*letters] |= as;
    }
}

int take_ready(void) {
    for (int i = 0; i < 256; i++) {
        int letter = (i >= 'a' && i <= 'z') || (i >= 'A' && i <= 'Z') || (i >= '0' && i <= '9');
        classes[i] = letter ? TOKEN | TARGET | HOST : 0;
        classes[i] |= i == '\t' || (i >= ' ' && i != 127) ? VALUE : 0;
    }
    mark("!#$%&'*+-.^_`|~", TOKEN);
    mark("/-._~%!$&'()*+,;=:@?", TARGET);
    mark("._~!$&'()*+,;=%:[]-", HOST);
    return 0;
}

/* What a head says of itself. */
typedef struct {
    const char *method;
    const char *target, *target_end;
    const char *end; /* behind its empty line */
    int hosts, lengths, chunked, types;
    Py_ssize_t length;
} Line;

static int is_all(const char *at, const char *end, uint8_t as) {
    for (; at < end; at++) {
        if (!(classes[(uint8_t)*at] & as)) {
            return 0;
        }
    }
    return 1;
}

static int same(const char *name, size_t size, const char *known) {
    return size == strlen(known) && memcmp(name, known, size) == 0;
}

/* Return whether a value is one in lower case, whatever the case of its letters. */
static int is_word(const char *at, size_t size, const char *known) {
    if (size != strlen(known)) {
        return 0;
    }
    for (; *known; known++, at++) {
        if ((*at | 32) != *known && *at != *known) {
            return 0;
        }
    }
    return 1;
}

static int read_length(Line *line, const char *at, size_t size) {
    if (size == 0 || size > MOST_DIGITS || line->lengths++) {
        return 0;
    }
    for (; size; size--, at++) {
        if (*at < '0' || *at > '9') {
            return 0;
        }
        line->length = line->length * 10 + (*at - '0');
    }
    return 1;
}

enum { KEEP, OMIT, LEAVE };

/* Return what becomes of a header: kept, left out (it frames), or reason to leave the request. */
static int judge(Line *line, const char *name, size_t size, const char *value, size_t value_size) {
    switch (size) {
    case 4:
        if (same(name, size, "host")) {
            return line->hosts++ == 0 && is_all(value, value + value_size, HOST) ? KEEP : LEAVE;
        }
        break;
    case 6:
        return same(name, size, "expect") ? LEAVE : KEEP;
    case 7:
        return same(name, size, "upgrade") ? LEAVE : KEEP;
    case 10:
        if (same(name, size, "connection")) {
            return is_word(value, value_size, "keep-alive") ? KEEP : LEAVE;
        }
        break;
    case 14:
        if (same(name, size, "content-length")) {
            return read_length(line, value, value_size) ? OMIT : LEAVE;
        }
        break;
    case 16:
        return same(name, size, "proxy-connection") ? LEAVE : KEEP;
    case 17:
        return same(name, size, "transfer-encoding") ? LEAVE : KEEP;
    default:
        break;
    }
    return KEEP;
}

/* The same of an answer's header. */
static int judge_answer(Line *line, const char *name, size_t size, const char *value,
                        size_t value_size) {
    switch (size) {
    case 7:
        return same(name, size, "upgrade") ? LEAVE : KEEP;
    case 12:
        return same(name, size, "content-type") && line->types++ ? LEAVE : KEEP;
    case 17:
        if (same(name, size, "transfer-encoding")) {
            return !line->chunked++ && is_word(value, value_size, "chunked") ? OMIT : LEAVE;
        }
        break;
    case 10:
    case 14:
    case 16:
        return judge(line, name, size, value, value_size);
    default:
        break;
    }
    return KEEP;
}

/* Read the first line; return where the next begins, NULL for one to leave. */
static const char *read_first(Line *line, const char *at, const char *end, Py_ssize_t most_target) {
    static const char version[] = " HTTP/1.1\r\n";
    if (end - at > 5 && memcmp(at, "POST ", 5) == 0) {
        line->method = "POST";
        at += 5;
    } else if (end - at > 4 && memcmp(at, "GET ", 4) == 0) {
        line->method = "GET";
        at += 4;
    } else {
        return NULL;
    }
    line->target = at;
    while (at < end && classes[(uint8_t)*at] & TARGET) {
        at++;
    }
    line->target_end = at;
    Py_ssize_t size = at - line->target;
    if (size == 0 || size > most_target || *line->target != '/' ||
        end - at < (Py_ssize_t)sizeof version - 1 || memcmp(at, version, sizeof version - 1) != 0) {
        return NULL;
    }
    return at + sizeof version - 1;
}

typedef int (*Judge)(Line *, const char *, size_t, const char *, size_t);

/* Read one header into a head; return where the next line begins, NULL for one to leave. */
static const char *read_header(Line *line, Judge judged, Head *head, uint32_t *room, const char *at,
                               const char *end) {
    char *bytes = head_bytes(head) + *room;
    const char *start = at;
    for (; at < end && classes[(uint8_t)*at] & TOKEN; at++) {
        *bytes++ = *at >= 'A' && *at <= 'Z' ? *at | 32 : *at;
    }
    size_t name_size = (size_t)(at - start);
    if (name_size == 0 || at == end || *at != ':') {
        return NULL;
    }
    for (at++; at < end && (*at == ' ' || *at == '\t'); at++) {
    }
    const char *value = at;
    while (at < end && classes[(uint8_t)*at] & VALUE) {
        at++;
    }
    if (end - at < 2 || at[0] != '\r' || at[1] != '\n') {
        return NULL;
    }
    const char *value_end = at;
    while (value_end > value && (value_end[-1] == ' ' || value_end[-1] == '\t')) {
        value_end--;
    }
    size_t value_size = (size_t)(value_end - value);
    const char *name = head_bytes(head) + *room;
    int kept = judged(line, name, name_size, value, value_size);
    if (kept == LEAVE) {
        return NULL;
    }
    if (kept == KEEP) {
        if (head->count == Py_SIZE(head)) {
            return NULL;
        }
        memcpy(bytes, value, value_size);
        head->lines[head->count++] =
            (HeadLine){name_hash(name, name_size), *room, (uint32_t)name_size,
                       *room + (uint32_t)name_size, (uint32_t)value_size};
        *room += (uint32_t)(name_size + value_size);
    }
    return at + 2;
}

/* Return how many lines there are up to `end`, at most one more than `most`. */
static Py_ssize_t count_lines(const char *at, const char *end, Py_ssize_t most) {
    Py_ssize_t count = 0;
    while (count <= most && at < end && (at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        at++;
        count++;
    }
    return count;
}

/* Read the headers from `at` to the empty line before `limit`, and where that ends; NULL for a head to
 * leave, or with an error set.
 */
static Head *read_headers(Line *line, Judge judged, const char *at, const char *limit,
                          Py_ssize_t most_lines) {
    const char *empty = memmem(at - 2, (size_t)(limit - at + 2), "\r\n\r\n", 4);
    NEED_OR_NULL(empty);
    most_lines = most_lines < MOST_LINES ? most_lines : MOST_LINES;
    Py_ssize_t lines = count_lines(at, empty + 2, most_lines + 1);
    Head *head = lines > most_lines ? NULL : head_new(lines, empty - at + 2);
    uint32_t room = 0;
    while (head != NULL && at < empty + 2) {
        at = read_header(line, judged, head, &room, at, empty + 2);
        if (at == NULL) {
            Py_CLEAR(head);
        }
    }
    line->end = empty + 4;
    return head;
}

static int read_limits(PyObject *const *args, Py_ssize_t count, Py_ssize_t *most) {
    for (Py_ssize_t i = 0; i < count; i++) {
        most[i] = PyLong_AsSsize_t(args[i]);
        if (most[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return 0;
}

static PyObject *finish(const Line *line, Head *head, const char *data, Py_ssize_t size) {
    const char *query = memchr(line->target, '?', (size_t)(line->target_end - line->target));
    const char *path_end = query == NULL ? line->target_end : query;
    query = query == NULL ? line->target_end : query + 1;
    PyObject *made = PyTuple_New(6);
    if (made == NULL) {
        Py_DECREF(head);
        return NULL;
    }
    PyTuple_SET_ITEM(made, 5, (PyObject *)head);
    PyTuple_SET_ITEM(made, 0, PyUnicode_InternFromString(line->method));
    PyTuple_SET_ITEM(made, 1,
                     PyBytes_FromStringAndSize(line->target, line->target_end - line->target));
    PyTuple_SET_ITEM(made, 2, PyBytes_FromStringAndSize(line->end, data + size - line->end));
    PyTuple_SET_ITEM(made, 3, PyUnicode_FromStringAndSize(line->target, path_end - line->target));
    PyTuple_SET_ITEM(made, 4, PyUnicode_FromStringAndSize(query, line->target_end - query));
    return made_or_null(made);
}

static PyObject *take_request(PyObject *Py_UNUSED(module), ARGUMENTS) {
    Py_ssize_t most[4];
    REFUSE_OR_NULL(nargs != 5 || !PyBytes_Check(args[0]), PyExc_TypeError,
                   "take_request takes bytes and 4 limits");
    TRY_OR_NULL(read_limits(args + 1, 4, most));
    const char *data = PyBytes_AS_STRING(args[0]);
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    const char *limit = data + (size < most[0] ? size : most[0]);
    Line line = {.method = NULL};
    const char *at = read_first(&line, data, limit, most[1]);
    Head *head = at == NULL ? NULL : read_headers(&line, judge, at, limit, most[2]);
    if (head == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    Py_ssize_t body = data + size - line.end;
    if (line.hosts != 1 || body != line.length || body > most[3]) {
        Py_DECREF(head);
        Py_RETURN_NONE;
    }
    return finish(&line, head, data, size);
}

/* Return an answer's status, and where its first header begins; 0 for one to leave. */
static int read_status(const char **at, const char *end) {
    static const char version[] = "HTTP/1.1 ";
    const char *digits = *at + sizeof version - 1, *line = digits + 3;
    if (end - *at < (Py_ssize_t)sizeof version + 4 || memcmp(*at, version, sizeof version - 1) != 0) {
        return 0;
    }
    int status = 0;
    for (int i = 0; i < 3; i++) {
        if (digits[i] < '0' || digits[i] > '9') {
            return 0;
        }
        status = status * 10 + (digits[i] - '0');
    }
    if (*line == ' ') {
        for (; line < end && classes[(uint8_t)*line] & VALUE; line++) {
        }
    }
    if (end - line < 2 || line[0] != '\r' || line[1] != '\n') {
        return 0;
    }
    *at = line + 2;
    return status < 200 || status > 599 || status == 204 || status == 304 ? 0 : status;
}

static PyObject *take_answer(PyObject *Py_UNUSED(module), ARGUMENTS) {
    Py_ssize_t most[3];
    REFUSE_OR_NULL(nargs != 4 || !PyBytes_Check(args[0]), PyExc_TypeError,
                   "take_answer takes bytes and 3 limits");
    TRY_OR_NULL(read_limits(args + 1, 3, most));
    const char *at = PyBytes_AS_STRING(args[0]), *data = at;
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    const char *limit = data + (size < most[0] ? size : most[0]);
    Line line = {.method = NULL};
    int status = read_status(&at, limit);
    Head *head = status ? read_headers(&line, judge_answer, at, limit, most[1]) : NULL;
    if (head == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    Py_ssize_t start = line.end - data, body = size - start;
    int whole = line.lengths && !line.chunked && body == line.length && body <= most[2];
    if (!whole && (!line.chunked || line.lengths)) {
        Py_DECREF(head);
        Py_RETURN_NONE;
    }
    return whole ? Py_BuildValue("iNny#", status, head, start, line.end, body)
                 : Py_BuildValue("iNnO", status, head, start, Py_None);
}

PyMethodDef native_take_methods[] = {
    METHOD_FASTCALL("take_request", take_request),
    METHOD_FASTCALL("take_answer", take_answer),
    {NULL, NULL, 0, NULL},
};
