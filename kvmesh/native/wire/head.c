/* Heads of messages, and the names that are asked for in them: see head.h. */
#include "base/shell.h"
#include "wire/head.h"
#include <string.h>

enum { MOST_NAMES = 1 << 12 };

uint32_t name_hash(const char *name, size_t size) {
    uint64_t first = 0, last = 0;
    if (size >= 8) {
        memcpy(&first, name, 8);
        memcpy(&last, name + size - 8, 8);
    } else {
        memcpy(&first, name, size);
    }
    uint64_t mixed = first * UINT64_C(0x9E3779B97F4A7C15);
    mixed = (mixed ^ (last << 32 | last >> 32) ^ size) * UINT64_C(0xC2B2AE3D27D4EB4F);
    return (uint32_t)(mixed >> 32);
}

Head *head_new(Py_ssize_t lines, Py_ssize_t bytes) {
    size_t size = sizeof(Head) + (size_t)lines * sizeof(HeadLine) + (size_t)bytes;
    Head *head = PyObject_Malloc(size);
    if (head == NULL) {
        return (Head *)PyErr_NoMemory();
    }
    PyObject_InitVar((PyVarObject *)head, &head_type, lines);
    head->count = 0;
    head->room = (uint32_t)bytes;
    return head;
}

static void head_dealloc(Head *self) { PyObject_Free(self); }

static int is_pair(PyObject *header) {
    return PyTuple_Check(header) && PyTuple_GET_SIZE(header) == 2 &&
           PyBytes_Check(PyTuple_GET_ITEM(header, 0)) && PyBytes_Check(PyTuple_GET_ITEM(header, 1));
}

/* Return the bytes of some headers, pairs of bytes; -1 with an error set. */
static Py_ssize_t size_of(PyObject *headers) {
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(headers); i++) {
        PyObject *header = PySequence_Fast_GET_ITEM(headers, i);
        REFUSE(!is_pair(header), PyExc_TypeError, "a header is a tuple of two bytes, not %.100R",
               header);
        size += PyBytes_GET_SIZE(PyTuple_GET_ITEM(header, 0)) +
                PyBytes_GET_SIZE(PyTuple_GET_ITEM(header, 1));
        REFUSE(size > INT32_MAX, PyExc_OverflowError, "headers of 2 GiB");
    }
    return size;
}

/* Write one line behind the others; `at` is the number of bytes before it, and is moved. */
static void add_line(Head *head, uint32_t *at, const char *name, size_t name_size, const char *value,
                     size_t value_size, uint32_t hash) {
    char *bytes = head_bytes(head);
    head->lines[head->count++] = (HeadLine){hash, *at, (uint32_t)name_size,
                                            *at + (uint32_t)name_size, (uint32_t)value_size};
    memcpy(bytes + *at, name, name_size);
    memcpy(bytes + *at + name_size, value, value_size);
    *at += (uint32_t)(name_size + value_size);
}

static void add_pairs(Head *head, uint32_t *at, PyObject *headers) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(headers); i++) {
        PyObject *header = PySequence_Fast_GET_ITEM(headers, i);
        PyObject *name = PyTuple_GET_ITEM(header, 0), *value = PyTuple_GET_ITEM(header, 1);
        const char *text = PyBytes_AS_STRING(name);
        size_t size = (size_t)PyBytes_GET_SIZE(name);
        add_line(head, at, text, size, PyBytes_AS_STRING(value), (size_t)PyBytes_GET_SIZE(value),
                 name_hash(text, size));
    }
}

static PyObject *head_make(PyTypeObject *Py_UNUSED(type), PyObject *args, PyObject *keywords) {
    PyObject *given;
    TRY_OR_NULL(READ_NEW("Head", "O", "headers", &given));
    PyObject *headers = PySequence_Fast(given, "headers are a sequence");
    Py_ssize_t size = headers == NULL ? -1 : size_of(headers);
    Head *head = size < 0 ? NULL : head_new(PySequence_Fast_GET_SIZE(headers), size);
    uint32_t at = 0;
    if (head != NULL) {
        add_pairs(head, &at, headers);
    }
    Py_XDECREF(headers);
    return (PyObject *)head;
}

static int is_named(const Head *head, const HeadLine *line, const char *name, size_t size) {
    return line->name_size == size && memcmp(head_bytes(head) + line->name, name, size) == 0;
}

/* Return the name itself if it is among those asked for, NULL if not. Borrowed; Py_None for one that
 * only its prefix names.
 */
static PyObject *find_name(const Names *names, const Head *head, const HeadLine *line) {
    for (uint32_t place = line->hash & names->mask; names->names[place] != NULL;
         place = (place + 1) & names->mask) {
        PyObject *name = names->names[place];
        if (names->hashes[place] == line->hash &&
            is_named(head, line, PyBytes_AS_STRING(name), (size_t)PyBytes_GET_SIZE(name))) {
            return name;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names->prefixes); i++) {
        PyObject *prefix = PyTuple_GET_ITEM(names->prefixes, i);
        size_t size = (size_t)PyBytes_GET_SIZE(prefix);
        if (size && line->name_size > size &&
            memcmp(head_bytes(head) + line->name, PyBytes_AS_STRING(prefix), size) == 0) {
            return Py_None;
        }
    }
    return NULL;
}

static PyObject *name_of(const Head *head, const HeadLine *line) {
    return PyBytes_FromStringAndSize(head_bytes(head) + line->name, line->name_size);
}

static PyObject *value_of(const Head *head, const HeadLine *line) {
    return PyBytes_FromStringAndSize(head_bytes(head) + line->value, line->value_size);
}

/* Append a header to a list, with `name` if it is made already, a new reference; -1 with an error. */
static int append_pair(PyObject *list, const Head *head, const HeadLine *line, PyObject *name) {
    PyObject *value = name == NULL ? NULL : value_of(head, line);
    PyObject *pair = value == NULL ? NULL : PyTuple_Pack(2, name, value);
    int failed = list_add(list, pair);
    XDECREF_ALL(value, name);
    return failed;
}

static PyObject *head_headers(Head *self, PyObject *Py_UNUSED(unused)) {
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < self->count; i++) {
        if (append_pair(list, self, self->lines + i, name_of(self, self->lines + i)) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *head_get(Head *self, PyObject *name) {
    REFUSE_OR_NULL(!PyBytes_Check(name), PyExc_TypeError, "a name is bytes, not %.100R", name);
    const char *text = PyBytes_AS_STRING(name);
    size_t size = (size_t)PyBytes_GET_SIZE(name);
    uint32_t hash = name_hash(text, size);
    for (const HeadLine *line = self->lines; line < self->lines + self->count; line++) {
        if (line->hash == hash && is_named(self, line, text, size)) {
            return value_of(self, line);
        }
    }
    Py_RETURN_NONE;
}

static const Names *read_names(PyObject *given) {
    REFUSE_OR_NULL(!Py_IS_TYPE(given, &names_type), PyExc_TypeError, "Names, not %.100R", given);
    return (const Names *)given;
}

static PyObject *head_select(Head *self, PyObject *given) {
    const Names *names = read_names(given);
    PyObject *list = NULL;
    for (uint32_t i = 0; names != NULL && i < self->count; i++) {
        const HeadLine *line = self->lines + i;
        PyObject *name = find_name(names, self, line);
        if (name == NULL) {
            continue;
        }
        if (list == NULL && (list = PyList_New(0)) == NULL) {
            return NULL;
        }
        if (append_pair(list, self, line, name == Py_None ? name_of(self, line) : Py_NewRef(name)) < 0) {
            Py_DECREF(list);
            return NULL;
        }
    }
    return names == NULL ? NULL : list != NULL ? list : PyTuple_New(0);
}

static PyObject *head_has(Head *self, PyObject *given) {
    const Names *names = read_names(given);
    NEED_OR_NULL(names);
    for (uint32_t i = 0; i < self->count; i++) {
        if (find_name(names, self, self->lines + i) != NULL) {
            Py_RETURN_TRUE;
        }
    }
    Py_RETURN_FALSE;
}

/* replaced(names, added) -> Head */
static PyObject *head_replaced(Head *self, ARGUMENTS) {
    PyObject *named, *headers;
    TRY_OR_NULL(READ_PLACED("replaced", "OO", "names added", &named, &headers));
    const Names *names = read_names(named);
    PyObject *added = names == NULL ? NULL : PySequence_Fast(headers, "headers are a sequence");
    Py_ssize_t size = added == NULL ? -1 : size_of(added);
    Head *head = NULL;
    if (size >= 0) {
        head = head_new((Py_ssize_t)self->count + PySequence_Fast_GET_SIZE(added),
                        (Py_ssize_t)self->room + size);
    }
    uint32_t at = 0;
    for (uint32_t i = 0; head != NULL && i < self->count; i++) {
        const HeadLine *line = self->lines + i;
        if (find_name(names, self, line) == NULL) {
            add_line(head, &at, head_bytes(self) + line->name, line->name_size,
                     head_bytes(self) + line->value, line->value_size, line->hash);
        }
    }
    if (head != NULL) {
        add_pairs(head, &at, added);
    }
    Py_XDECREF(added);
    return (PyObject *)head;
}

/* Return the bytes of the lines that `names` does not name, 4 more each. */
static Py_ssize_t rendered_size(const Head *self, const Names *names) {
    Py_ssize_t size = 0;
    for (uint32_t i = 0; i < self->count; i++) {
        const HeadLine *line = self->lines + i;
        if (find_name(names, self, line) == NULL) {
            size += (Py_ssize_t)line->name_size + line->value_size + 4;
        }
    }
    return size;
}

static int has_break(const char *at, size_t size) {
    return memchr(at, '\n', size) != NULL || memchr(at, '\r', size) != NULL;
}

static PyObject *head_render(Head *self, PyObject *given) {
    const Names *names = read_names(given);
    PyObject *block =
        names == NULL ? NULL : PyBytes_FromStringAndSize(NULL, rendered_size(self, names));
    char *at = block == NULL ? NULL : PyBytes_AS_STRING(block);
    int broken = 0;
    for (uint32_t i = 0; block != NULL && i < self->count; i++) {
        const HeadLine *line = self->lines + i;
        if (find_name(names, self, line) != NULL) {
            continue;
        }
        const char *bytes = head_bytes(self);
        /* Name and value stand behind each other. */
        broken |= has_break(bytes + line->name, (size_t)line->name_size + line->value_size);
        memcpy(at, bytes + line->name, line->name_size);
        at += line->name_size;
        *at++ = ':';
        *at++ = ' ';
        memcpy(at, bytes + line->value, line->value_size);
        at += line->value_size;
        *at++ = '\r';
        *at++ = '\n';
    }
    if (broken) {
        PyErr_Format(PyExc_ValueError, "header with a line break in %R", block);
        Py_CLEAR(block);
    }
    return block;
}

METHODS(head_methods,
    METHOD_NOARGS("headers", head_headers),
    METHOD_O("get", head_get),
    METHOD_O("select", head_select),
    METHOD_O("has", head_has),
    METHOD_FASTCALL("replaced", head_replaced),
    METHOD_O("render", head_render))

PyTypeObject head_type = {
    SLOTS("Head", sizeof(Head), 0),
    .tp_itemsize = sizeof(HeadLine),
    .tp_new = head_make,
    .tp_dealloc = (destructor)head_dealloc,
    .tp_methods = head_methods,
};

static void names_dealloc(Names *self) {
    for (uint32_t i = 0; self->names != NULL && i <= self->mask; i++) {
        Py_XDECREF(self->names[i]);
    }
    FREE_ALL(self->names, self->hashes);
    Py_XDECREF(self->prefixes);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Put one name in; the table has a free place. */
static void enter_name(Names *self, PyObject *name) {
    const char *text = PyBytes_AS_STRING(name);
    size_t size = (size_t)PyBytes_GET_SIZE(name);
    uint32_t hash = name_hash(text, size), place = hash & self->mask;
    while (self->names[place] != NULL) {
        place = (place + 1) & self->mask;
    }
    self->names[place] = Py_NewRef(name);
    self->hashes[place] = hash;
}

static int fill_names(Names *self, PyObject *names) {
    Py_ssize_t count = PySequence_Fast_GET_SIZE(names), room = 4;
    for (Py_ssize_t i = 0; i < count; i++) {
        REFUSE(!PyBytes_CheckExact(PySequence_Fast_GET_ITEM(names, i)), PyExc_TypeError,
               "names of headers are bytes");
    }
    REFUSE(count > MOST_NAMES, PyExc_ValueError, "at most %d names", MOST_NAMES);
    while (room < 4 * count) {
        room *= 2;
    }
    self->names = PyMem_Calloc((size_t)room, sizeof *self->names);
    self->hashes = PyMem_Calloc((size_t)room, sizeof *self->hashes);
    NEED_MEMORY(self->names);
    NEED_MEMORY(self->hashes);
    self->mask = (uint32_t)room - 1;
    for (Py_ssize_t i = 0; i < count; i++) {
        enter_name(self, PySequence_Fast_GET_ITEM(names, i));
    }
    return 0;
}

/* Return the prefixes, one or a tuple of them, as a tuple. */
static PyObject *read_prefixes(PyObject *given) {
    PyObject *all = PyTuple_CheckExact(given) ? Py_NewRef(given) : PyTuple_Pack(1, given);
    for (Py_ssize_t i = 0; all != NULL && i < PyTuple_GET_SIZE(all); i++) {
        PyObject *prefix = PyTuple_GET_ITEM(all, i);
        if (!PyBytes_CheckExact(prefix)) {
            PyErr_Format(PyExc_TypeError, "Names: prefix is %R, it must be bytes", prefix);
            Py_CLEAR(all);
        }
    }
    return all;
}

static PyObject *names_new(NEW_ARGUMENTS) {
    PyObject *given, *prefix;
    TRY_OR_NULL(READ_NEW("Names", "OO", "names prefix", &given, &prefix));
    PyObject *prefixes = read_prefixes(prefix);
    PyObject *all = prefixes == NULL ? NULL : PySequence_List(given);
    Names *self = all == NULL ? NULL : (Names *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->prefixes = Py_NewRef(prefixes);
        if (fill_names(self, all) < 0) {
            Py_CLEAR(self);
        }
    }
    XDECREF_ALL(prefixes, all);
    return (PyObject *)self;
}

PyTypeObject names_type = {
    TYPE("Names", Names, names),
};
