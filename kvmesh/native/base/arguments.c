/* The arguments of calls from Python: see arguments.h. */
#include "base/arguments.h"

#include <stdarg.h>
#include <string.h>

enum { MOST_ARGUMENTS = 24, MOST_LETTERS = 64 };

/* What is called. */
typedef struct {
    const char *function, *types, *names;
} Call;

static int is_type(char letter) { return letter != '|' && letter != '$' && letter != '+'; }

/* Return how many arguments there are before `end`, a letter of `types`; all for '\0'. */
static Py_ssize_t count_until(const Call *call, char end) {
    Py_ssize_t count = 0;
    for (const char *type = call->types; *type != '\0' && *type != end; type++) {
        count += is_type(*type);
    }
    return count;
}

/* Write the name of an argument. */
static const char *name_of(const Call *call, Py_ssize_t number, char *name) {
    const char *at = call->names;
    for (; number > 0; number--) {
        at = strchr(at, ' ') + 1;
    }
    size_t size = strcspn(at, " ");
    memcpy(name, at, size);
    name[size] = '\0';
    return name;
}

static int place_argument(const Call *call, PyObject *name, PyObject *value, PyObject **given) {
    char known[MOST_LETTERS];
    Py_ssize_t count = count_until(call, '\0');
    for (Py_ssize_t at = 0; at < count; at++) {
        if (given[at] == NULL &&
            PyUnicode_CompareWithASCIIString(name, name_of(call, at, known)) == 0) {
            given[at] = value;
            return 0;
        }
    }
    return set_error(PyExc_TypeError, "%s has no argument %R, or has it twice: it takes %s", call->function,
                     name, call->names);
}

static int refuse_more(const Call *call, Py_ssize_t count) {
    return set_error(PyExc_TypeError, "%s takes %zd arguments by place, not %zd: %s", call->function,
                     count_until(call, '$'), count, call->names);
}

static int refuse_less(const Call *call, Py_ssize_t number) {
    char name[MOST_LETTERS];
    return set_error(PyExc_TypeError, "%s needs %s", call->function, name_of(call, number, name));
}

/* Set what is wrong with an argument, unless it failed by itself. */
static int refuse(const Call *call, Py_ssize_t number, PyObject *given, const char *wanted) {
    char name[MOST_LETTERS];
    PyObject *error = PyErr_Occurred() == NULL || PyErr_ExceptionMatches(PyExc_TypeError)
                          ? PyExc_TypeError
                          : PyExc_OverflowError;
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(error)) {
        return -1;
    }
    return set_error(error, "%s: %s is %.100R, it must be %s", call->function,
                name_of(call, number, name), given, wanted);
}

/* Put an object or a number in its place; return what it must be if it is not. */
static inline const char *convert(char letter, PyObject *given, void *to) {
    PyObject **object = to;
    switch (letter) {
    case 'O':
        *object = given;
        return NULL;
    case 'd':
        return read_double(given, to) < 0 ? "a float" : NULL;
    case 'L':
        *(long long *)to = PyLong_AsLongLong(given);
        return *(long long *)to == -1 && PyErr_Occurred() ? "an int from -2^63 to 2^63-1" : NULL;
    case 'N':
        return read_amount(given, to) < 0 ? "an int" : NULL;
    case 'U':
        *object = given;
        return PyUnicode_Check(given) ? NULL : "a str";
    case 'S':
        *object = given;
        return PyBytes_Check(given) ? NULL : "bytes";
    case 'T':
        *object = given;
        return PyTuple_Check(given) ? NULL : "a tuple";
    case 'D':
        *object = given;
        return PyDict_Check(given) ? NULL : "a dict";
    case 'n':
        *(Py_ssize_t *)to = PyNumber_AsSsize_t(given, PyExc_OverflowError);
        return *(Py_ssize_t *)to == -1 && PyErr_Occurred() ? "an int from -2^63 to 2^63-1" : NULL;
    case 'K':
        *(uint64_t *)to = PyLong_AsUnsignedLongLong(given);
        return *(uint64_t *)to == UINT64_MAX && PyErr_Occurred() ? "an int from 0 to 2^64-1" : NULL;
    default:
        *(int *)to = PyObject_IsTrue(given);
        return *(int *)to < 0 ? "true or false" : NULL;
    }
}

int read_attribute(PyObject *object, PyObject *name, char type, void *number) {
    PyObject *given = PyObject_GetAttr(object, name);
    int failed = given == NULL || convert(type, given, number) != NULL ? -1 : 0;
    Py_XDECREF(given);
    return failed;
}

/* Read `count` arguments, NULL for those left out; `named`: they may be beyond $. */
static int convert_all(const Call *call, PyObject *const *given, Py_ssize_t count, int named,
                       va_list places) {
    Py_ssize_t at = 0;
    int may_lack = 0, keeps = 0;
    for (const char *type = call->types; *type != '\0'; type++) {
        if (!is_type(*type)) {
            may_lack |= *type == '|';
            keeps = *type == '+';
            count = *type != '$' || named ? count : at < count ? -1 : 0;
            if (count < 0) {
                return 1;
            }
            continue;
        }
        PyTypeObject *wanted = *type == '!' ? va_arg(places, PyTypeObject *) : NULL;
        void *to = va_arg(places, void *);
        PyObject *value = at < count ? given[at] : NULL;
        if (value != NULL) {
            const char *failed = wanted == NULL                    ? convert(*type, value, to)
                                 : PyObject_TypeCheck(value, wanted) ? convert('O', value, to)
                                                                     : wanted->tp_name;
            if (failed != NULL) {
                *(keeps ? (PyObject **)to : &value) = NULL; /* nobody's reference */
                return refuse(call, at, given[at], failed);
            }
            if (keeps) {
                Py_INCREF(value);
            }
        } else if (!may_lack) {
            return refuse_less(call, at);
        }
        keeps = 0;
        at++;
    }
    return at < count;
}

/* Read them with those that are given by name, `next` of which gives one: by tp_new's dict or by the
 * names of a vectorcall.
 */
static int read_named(const Call *call, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords,
                      va_list places) {
    PyObject *given[MOST_ARGUMENTS] = {NULL}, *name, *value;
    Py_ssize_t place = 0;
    if (nargs > count_until(call, '$')) {
        return refuse_more(call, nargs);
    }
    memcpy(given, args, (size_t)nargs * sizeof *given);
    if (PyDict_CheckExact(keywords)) {
        while (PyDict_Next(keywords, &place, &name, &value)) {
            TRY(place_argument(call, name, value, given));
        }
    } else {
        for (; place < PyTuple_GET_SIZE(keywords); place++) {
            TRY(place_argument(call, PyTuple_GET_ITEM(keywords, place), args[nargs + place],
                               given));
        }
    }
    return convert_all(call, given, count_until(call, '\0'), 1, places);
}

static int read_all(const Call *call, PyObject *const *args, Py_ssize_t nargs, PyObject *keywords,
                    va_list places) {
    int failed = keywords == NULL ? convert_all(call, args, nargs, 0, places)
                                  : read_named(call, args, nargs, keywords, places);
    return failed > 0 ? refuse_more(call, nargs) : failed;
}

int read_arguments(PyObject *const *args, Py_ssize_t nargs, PyObject *keywords,
                   const char *function, const char *types, const char *names, ...) {
    va_list places;
    va_start(places, names);
    int failed = read_all(&(Call){function, types, names}, args, nargs, keywords, places);
    va_end(places);
    return failed;
}

int read_new(PyObject *args, PyObject *keywords, const char *function, const char *types,
             const char *names, ...) {
    va_list places;
    va_start(places, names);
    int failed = read_all(&(Call){function, types, names}, ((PyTupleObject *)args)->ob_item,
                          PyTuple_GET_SIZE(args), keywords, places);
    va_end(places);
    return failed;
}
