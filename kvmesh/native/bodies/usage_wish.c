/* A stream's request that asks its engine for usage: the client's bytes, and a wish put between them. */
#define _GNU_SOURCE
#include "base/shell.h"
#include "bodies/bodies.h"
#include "bodies/json_text.h"
#include "bodies/scan.h"

#define NAME "\"stream_options\""
#define NAME_SIZE ((Py_ssize_t)sizeof NAME - 1)
#define FLAG "\"include_usage\":true"
#define IDS "\"return_token_ids\":true,"
#define STEP 32

/* `with` stands in place of the bytes from `at` to `end`. */
typedef struct {
    const uint8_t *at, *end;
    const char *with;
} Wish;

#ifdef JSON_WIDTH
/* Tell whether the name may begin at one of `STEP` bytes, of which NAME_SIZE more can be read. */
static int may_hold(const uint8_t *at) {
    JsonHalves any = {0};
    for (int i = 0; i < STEP; i += JSON_WIDTH) {
        JsonBytes second, eighth;
        memcpy(&second, at + i + 1, sizeof second);
        memcpy(&eighth, at + i + 7, sizeof eighth);
        any |= (JsonHalves)((second == 's') & (eighth == '_'));
    }
    return (any[0] | any[1]) != 0;
}
#else
static int may_hold(const uint8_t *Py_UNUSED(at)) { return 1; }
#endif

/* Tell whether the name stands anywhere in a body. */
static int has_name(const uint8_t *at, const uint8_t *end) {
    for (; end - at >= STEP + NAME_SIZE; at += STEP) {
        if (may_hold(at) && memmem(at, STEP + NAME_SIZE - 1, NAME, NAME_SIZE) != NULL) {
            return 1;
        }
    }
    return memmem(at, (size_t)(end - at), NAME, NAME_SIZE) != NULL;
}

/* Find the last value that a member of an object has, `*value` NULL for none; 0: it is not read. */
static int find_member(const uint8_t *at, const uint8_t *end, const char *name, ScanSpan *value) {
    JsonWalk walk = json_walk(at + 1, end);
    int found = 0, more;
    *value = (ScanSpan){NULL, 0};
    while ((more = json_member(&walk, &found)) > 0) {
        int is_it = !walk.escaped && json_key_is(&walk, name, strlen(name));
        const uint8_t *start = walk.at;
        walk.at = json_value(start, end, SCAN_DEPTH, &found);
        if (walk.at == NULL || walk.escaped) {
            return 0;
        }
        if (is_it) {
            *value = (ScanSpan){start, walk.at - start};
        }
    }
    return more == 0;
}

/* Say how options that stand in a body come to ask for usage; 0: they do, or are not read. */
static int wish_in(const ScanSpan *options, Wish *wish) {
    const uint8_t *at = options->at, *end = at + options->size;
    ScanSpan flag;
    if (json_is(at, end, "null", 4)) {
        *wish = (Wish){at, end, "{" FLAG "}"};
        return 1;
    }
    if (*at != '{' || !find_member(at, end, "include_usage", &flag)) {
        return 0;
    }
    if (flag.at == NULL) {
        int empty = *json_blanks(at + 1, end) == '}';
        *wish = (Wish){at + 1, at + 1, empty ? FLAG : FLAG ","};
        return 1;
    }
    *wish = (Wish){flag.at, flag.at + flag.size, "true"};
    return json_is(flag.at, end, "false", 5) || json_is(flag.at, end, "null", 4);
}

/* ask_usage(body, ids) -> the body that asks for usage, and for token ids; None: nothing to be asked */
static PyObject *ask_usage(PyObject *Py_UNUSED(module), ARGUMENTS) {
    REFUSE_OR_NULL(nargs != 2 || !PyBytes_Check(args[0]), PyExc_TypeError,
                   "ask_usage takes a body, bytes, and whether to ask for ids");
    const uint8_t *body = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    const uint8_t *end = body + PyBytes_GET_SIZE(args[0]), *open = json_blanks(body, end);
    ScanSpan options = {NULL, 0};
    int ids = PyObject_IsTrue(args[1]);
    TRY_OR_NULL(ids);
    if (open == end || *open++ != '{' || json_blanks(open, end) == end ||
        *json_blanks(open, end) == '}' ||
        (has_name(open, end) && !find_member(open - 1, end, "stream_options", &options))) {
        Py_RETURN_NONE;
    }
    Wish wish = {open, open, NAME ":{" FLAG "},"};
    if (options.at != NULL && !wish_in(&options, &wish)) {
        Py_RETURN_NONE;
    }
    size_t size = strlen(wish.with), first = ids ? sizeof IDS - 1 : 0;
    const uint8_t *parts[] = {body, (const uint8_t *)IDS, open, (const uint8_t *)wish.with, wish.end};
    size_t sizes[] = {(size_t)(open - body), first, (size_t)(wish.at - open), size,
                      (size_t)(end - wish.end)};
    PyObject *made = PyBytes_FromStringAndSize(
        NULL, (Py_ssize_t)(first + size) + PyBytes_GET_SIZE(args[0]) - (wish.end - wish.at));
    NEED_OR_NULL(made);
    char *to = PyBytes_AS_STRING(made);
    for (int i = 0; i < 5; i++) {
        memcpy(to, parts[i], sizes[i]);
        to += sizes[i];
    }
    return made;
}

PyMethodDef native_usage_methods[] = {
    METHOD_FASTCALL("ask_usage", ask_usage),
    {NULL, NULL, 0, NULL},
};
