/* The ids of chats of known form. Its naive model is tests/reference/prompts/text_packer.py. */
#include "base/names.h"
#include "base/shell.h"
#include "prompts/packer.h"

enum { PLACE, HEAD, INDEX, STRIPS, TAIL, OPENING_SIZE };
enum { HINTS, MARKS, PARTS, OPENINGS, FORM_SIZE };

static PyObject *packer_new(NEW_ARGUMENTS) {
    TextPacker *self = (TextPacker *)type->tp_alloc(type, 0);
    if (self != NULL && ((self->forms = PyDict_New()) == NULL ||
                         READ_NEW("TextPacker", "+!+O", "cache encode_batch", &text_cache_type,
                                  &self->cache, &self->encode_batch) < 0)) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

TRAVERSE(TextPacker, packer, cache, encode_batch, forms)

/* The dict stays: what the collector took apart may still be asked. */
static int packer_clear(TextPacker *self) {
    Py_CLEAR(self->encode_batch);
    return 0;
}

GC_DEALLOC_AFTER(TextPacker, packer, packer_clear(self), cache, forms)

/* Whether `value` is a tuple of `size` (or any, for -1) members, each exactly a `type`. */
static int is_tuple_of(PyObject *value, PyTypeObject *type, Py_ssize_t size) {
    if (!PyTuple_CheckExact(value) || (size >= 0 && PyTuple_GET_SIZE(value) != size)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) {
        EXPECT(Py_IS_TYPE(PyTuple_GET_ITEM(value, i), type));
    }
    return 1;
}

static int is_strips(PyObject *strips) {
    EXPECT(is_tuple_of(strips, &PyTuple_Type, -1));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(strips); i++) {
        PyObject *strip = PyTuple_GET_ITEM(strips, i);
        if (PyTuple_GET_SIZE(strip) != 2 || !PyUnicode_CheckExact(PyTuple_GET_ITEM(strip, 0)) ||
            !(PyTuple_GET_ITEM(strip, 1) == Py_None ||
              PyUnicode_CheckExact(PyTuple_GET_ITEM(strip, 1)))) {
            return 0;
        }
    }
    return 1;
}

/* Whether an opening is one, within its form; -1 with an error set. */
static int check_opening(PyObject *opening, Py_ssize_t parts, Py_ssize_t roles) {
    REFUSE(PyTuple_GET_SIZE(opening) != OPENING_SIZE ||
           !PyLong_CheckExact(PyTuple_GET_ITEM(opening, PLACE)) ||
           !PyUnicode_CheckExact(PyTuple_GET_ITEM(opening, HEAD)) ||
           !PyLong_CheckExact(PyTuple_GET_ITEM(opening, INDEX)) ||
           !is_strips(PyTuple_GET_ITEM(opening, STRIPS)) ||
           !PyUnicode_CheckExact(PyTuple_GET_ITEM(opening, TAIL)), PyExc_TypeError,
           "an opening is its place, a head, the number of a text, strips, a tail");
    Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(opening, PLACE));
    Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(opening, INDEX));
    TRY(no_error());
    REFUSE(place < 0 || place >= parts || index < 0 || index >= roles, PyExc_ValueError,
           "opening %zd of text %zd is outside the form", place, index);
    return 0;
}

static PyObject *packer_teach(TextPacker *self, ARGUMENTS) {
    PyObject *roles, *hints, *marks, *parts, *openings;
    TRY_OR_NULL(READ_PLACED("teach", "OOOOO", "roles hints marks parts openings", &roles, &hints,
                            &marks, &parts, &openings));
    REFUSE_OR_NULL(!is_tuple_of(roles, &PyUnicode_Type, -1) ||
                   !is_tuple_of(hints, &PyUnicode_Type, -1) ||
                   !is_tuple_of(marks, &PyUnicode_Type, -1) ||
                   !is_tuple_of(parts, &PyBytes_Type, -1) ||
                   !is_tuple_of(openings, &PyTuple_Type, -1), PyExc_TypeError,
                   "a form is three tuples of str, one of bytes and one of openings");
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(openings); i++) {
        TRY_OR_NULL(check_opening(PyTuple_GET_ITEM(openings, i), PyTuple_GET_SIZE(parts),
                                  PyTuple_GET_SIZE(roles)));
    }
    PyObject *form = PyTuple_Pack(FORM_SIZE, hints, marks, parts, openings);
    int kept = form == NULL ? -1 : PyDict_SetItem(self->forms, roles, form);
    Py_XDECREF(form);
    TRY_OR_NULL(kept);
    Py_RETURN_NONE;
}

static PyObject *packer_forget(TextPacker *self, PyObject *Py_UNUSED(unused)) {
    PyDict_Clear(self->forms);
    Py_RETURN_NONE;
}

/* Find a message's role and content, new references: 1; 0 when it has not just these; -1 on error.
 * A key of a dict may run Python code when it is compared.
 */
static int read_message(PyObject *message, PyObject **role, PyObject **text) {
    *role = *text = NULL;
    if (PyTuple_CheckExact(message) && PyTuple_GET_SIZE(message) == 2) {
        *role = Py_NewRef(PyTuple_GET_ITEM(message, 0));
        *text = Py_NewRef(PyTuple_GET_ITEM(message, 1));
    } else if (PyDict_CheckExact(message) && PyDict_GET_SIZE(message) == 2) {
        *role = PyDict_GetItemWithError(message, interned.role);
        Py_XINCREF(*role);
        *text = *role == NULL ? NULL : PyDict_GetItemWithError(message, interned.content);
        Py_XINCREF(*text);
    }
    TRY(no_error());
    return *text != NULL && PyUnicode_CheckExact(*role) && PyUnicode_CheckExact(*text);
}

static int is_blank(PyObject *text) {
    int kind = PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    Py_ssize_t length = PyUnicode_GET_LENGTH(text);
    for (Py_ssize_t i = 0; i < length; i++) {
        EXPECT(Py_UNICODE_ISSPACE(PyUnicode_READ(kind, data, i)));
    }
    return 1;
}

/* Whether one of the strings is in the text; -1 with an error set. */
static int has_any(PyObject *text, PyObject *strings) {
    int found = 0;
    for (Py_ssize_t i = 0; !found && i < PyTuple_GET_SIZE(strings); i++) {
        found = PyUnicode_Contains(text, PyTuple_GET_ITEM(strings, i));
    }
    return found;
}

/* Whether the texts are such as the form is for; -1 with an error set. */
static int are_sure(PyObject *texts, PyObject *form) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(texts); i++) {
        PyObject *text = PyTuple_GET_ITEM(texts, i);
        if (is_blank(text)) {
            return 0;
        }
        int found = has_any(text, PyTuple_GET_ITEM(form, HINTS));
        if (found > 0) {
            found = has_any(text, PyTuple_GET_ITEM(form, MARKS));
        }
        if (found) {
            return found < 0 ? -1 : 0;
        }
    }
    return 1;
}

/* Return the text as the template prints it, a new reference. */
static PyObject *strip_text(PyObject *text, PyObject *strips) {
    Py_INCREF(text);
    for (Py_ssize_t i = 0; text != NULL && i < PyTuple_GET_SIZE(strips); i++) {
        PyObject *strip = PyTuple_GET_ITEM(strips, i);
        PyObject *next = PyObject_CallMethodOneArg(text, PyTuple_GET_ITEM(strip, 0),
                                                   PyTuple_GET_ITEM(strip, 1));
        Py_SETREF(text, next);
        if (text != NULL && !PyUnicode_CheckExact(text)) {
            PyErr_SetString(PyExc_TypeError, "a strip gives a str");
            Py_CLEAR(text);
        }
    }
    return text;
}

static Py_UCS4 largest(Py_UCS4 one, Py_UCS4 other) {
    return one > other ? one : other;
}

/* Return the segment of an opening, a new reference. */
static PyObject *make_segment(PyObject *opening, PyObject *texts) {
    PyObject *head = PyTuple_GET_ITEM(opening, HEAD), *tail = PyTuple_GET_ITEM(opening, TAIL);
    Py_ssize_t index = PyLong_AsSsize_t(PyTuple_GET_ITEM(opening, INDEX));
    PyObject *text = strip_text(PyTuple_GET_ITEM(texts, index), PyTuple_GET_ITEM(opening, STRIPS));
    NEED_OR_NULL(text);
    PyObject *pieces[] = {head, text, tail};
    Py_ssize_t length = 0;
    Py_UCS4 most = 0;
    for (int i = 0; i < 3; i++) {
        length += PyUnicode_GET_LENGTH(pieces[i]);
        if (PyUnicode_GET_LENGTH(pieces[i])) {
            most = largest(most, PyUnicode_MAX_CHAR_VALUE(pieces[i]));
        }
    }
    PyObject *segment = PyUnicode_New(length, most);
    Py_ssize_t at = 0;
    for (int i = 0; segment != NULL && i < 3; i++) {
        Py_ssize_t size = PyUnicode_GET_LENGTH(pieces[i]);
        if (size && PyUnicode_CopyCharacters(segment, at, pieces[i], 0, size) < 0) {
            Py_CLEAR(segment);
        }
        at += size;
    }
    Py_DECREF(text);
    return segment;
}

/* Tokenise the segments at `places` that were unknown and put their ids there; -1 on error. */
static int fill_unknown(TextPacker *self, PyObject *filled, PyObject *unknown,
                        PyObject *places) {
    REFUSE(self->encode_batch == NULL, PyExc_ReferenceError, "the tokenizer is gone");
    PyObject *encode = Py_NewRef(self->encode_batch);
    PyObject *made = PyObject_CallOneArg(encode, unknown);
    Py_DECREF(encode);
    PyObject *fresh = made == NULL ? NULL : PySequence_Tuple(made);
    Py_XDECREF(made);
    int failed = fresh == NULL;
    if (!failed && (PyTuple_GET_SIZE(fresh) != PyList_GET_SIZE(places) ||
                    PyList_GET_SIZE(unknown) != PyList_GET_SIZE(places))) {
        PyErr_Format(PyExc_ValueError, "%zd texts were tokenised of %zd", PyTuple_GET_SIZE(fresh),
                     PyList_GET_SIZE(places));
        failed = 1;
    }
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(fresh); i++) {
        PyObject *ids = PyTuple_GET_ITEM(fresh, i);
        PyObject *text = Py_NewRef(PyList_GET_ITEM(unknown, i));
        if (!PyBytes_CheckExact(ids) || !PyUnicode_CheckExact(text)) {
            PyErr_Format(PyExc_TypeError, "ids are bytes, not %.80s", Py_TYPE(ids)->tp_name);
            failed = 1;
        } else if (text_cache_put(self->cache, text, ids) < 0) {
            failed = 1;
        } else {
            Py_ssize_t place = PyLong_AsSsize_t(PyList_GET_ITEM(places, i));
            PyList_SetItem(filled, place, Py_NewRef(ids));
        }
        Py_DECREF(text);
    }
    Py_XDECREF(fresh);
    return failed ? -1 : 0;
}

static PyObject *join_parts(PyObject *filled) {
    Py_ssize_t size = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(filled); i++) {
        size += PyBytes_GET_SIZE(PyList_GET_ITEM(filled, i));
    }
    PyObject *packed = PyBytes_FromStringAndSize(NULL, size);
    char *place = packed == NULL ? NULL : PyBytes_AS_STRING(packed);
    for (Py_ssize_t i = 0; packed != NULL && i < PyList_GET_SIZE(filled); i++) {
        PyObject *part = PyList_GET_ITEM(filled, i);
        memcpy(place, PyBytes_AS_STRING(part), (size_t)PyBytes_GET_SIZE(part));
        place += PyBytes_GET_SIZE(part);
    }
    return packed;
}

/* Put the ids of known segments into `filled`, the others into the lists; -1 on error. */
static int fill_known(TextPacker *self, PyObject *openings, PyObject *texts, PyObject *filled,
                      PyObject *unknown, PyObject *places) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(openings); i++) {
        PyObject *opening = PyTuple_GET_ITEM(openings, i);
        PyObject *place = PyTuple_GET_ITEM(opening, PLACE);
        PyObject *segment = make_segment(opening, texts);
        PyObject *ids = segment == NULL ? NULL : text_cache_get(self->cache, segment);
        int failed = segment == NULL || (ids == NULL && PyErr_Occurred());
        if (ids != NULL) {
            PyList_SetItem(filled, PyLong_AsSsize_t(place), ids);
        } else if (!failed) {
            failed = PyList_Append(unknown, segment) < 0 || PyList_Append(places, place) < 0;
        }
        Py_XDECREF(segment);
        if (failed) {
            return -1;
        }
    }
    return 0;
}

static PyObject *pack_form(TextPacker *self, PyObject *form, PyObject *texts) {
    PyObject *packed = NULL, *parts = PyTuple_GET_ITEM(form, PARTS);
    PyObject *filled = PySequence_List(parts), *unknown = PyList_New(0), *places = PyList_New(0);
    if (filled != NULL && unknown != NULL && places != NULL &&
        fill_known(self, PyTuple_GET_ITEM(form, OPENINGS), texts, filled, unknown, places) == 0 &&
        (PyList_GET_SIZE(places) == 0 || fill_unknown(self, filled, unknown, places) == 0)) {
        packed = join_parts(filled);
        self->packed += packed != NULL;
    }
    XDECREF_ALL(filled, unknown, places);
    return packed;
}

/* Read messages into two tuples of their size: 1; 0 when one has more; -1 with an error set. */
static int read_messages(PyObject *messages, PyObject *roles, PyObject *texts) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(roles); i++) {
        PyObject *role, *text, *message = PySequence_GetItem(messages, i);
        int found = message == NULL ? -1 : read_message(message, &role, &text);
        if (message != NULL) {
            Py_DECREF(message);
            PyTuple_SET_ITEM(roles, i, role);
            PyTuple_SET_ITEM(texts, i, text);
        }
        if (found <= 0) {
            return found;
        }
    }
    return 1;
}

/* Return the packed ids of a list of messages, tuples or dicts; Py_None: somebody has to look closer.
 * Runs Python code where a text is new.
 */
static PyObject *text_packer_pack(TextPacker *self, PyObject *messages) {
    if (!PyList_CheckExact(messages) && !PyTuple_CheckExact(messages)) {
        Py_RETURN_NONE;
    }
    Py_ssize_t size = PyObject_Size(messages);
    PyObject *roles = PyTuple_New(size), *texts = PyTuple_New(size), *form = NULL, *packed = NULL;
    int sure = roles == NULL || texts == NULL ? -1 : read_messages(messages, roles, texts);
    if (sure > 0) {
        form = PyDict_GetItemWithError(self->forms, roles);
        Py_XINCREF(form);
        sure = form != NULL ? are_sure(texts, form) : -(PyErr_Occurred() != NULL);
    }
    if (sure > 0) {
        packed = pack_form(self, form, texts);
    } else if (sure == 0) {
        packed = Py_NewRef(Py_None);
    }
    XDECREF_ALL(roles, texts, form);
    return packed;
}

METHODS(packer_methods,
    METHOD_FASTCALL("teach", packer_teach),
    METHOD_NOARGS("forget", packer_forget),
    METHOD_O("pack", text_packer_pack))

MEMBERS(packer_members, FIELDS(TextPacker, T_LONGLONG, READONLY, packed))

PyTypeObject text_packer_type = {
    GC_TYPE("TextPacker", TextPacker, packer),
    .tp_clear = (inquiry)packer_clear,
    .tp_members = packer_members, .tp_methods = packer_methods,
};
