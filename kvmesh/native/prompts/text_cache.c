/* A cache of texts in two generations: core.prompts.segment_cache.ByteBudgetCache for str keys. */
#include "base/shell.h"
#include "prompts/packer.h"

static PyObject *getsizeof_function;

int text_cache_ready(void) {
    getsizeof_function = PySys_GetObject("getsizeof");
    REFUSE(getsizeof_function == NULL, PyExc_RuntimeError, "sys.getsizeof is missing");
    Py_INCREF(getsizeof_function);
    return 0;
}

static PyObject *cache_new(NEW_ARGUMENTS) {
    Py_ssize_t capacity;
    TRY_OR_NULL(READ_NEW("TextCache", "n", "capacity", &capacity));
    TextCache *self = (TextCache *)type->tp_alloc(type, 0);
    NEED_OR_NULL(self);
    self->half = capacity / 2 > 1 ? capacity / 2 : 1;
    self->young = PyDict_New();
    self->old = PyDict_New();
    return made_or_null(self);
}

DEALLOC(TextCache, cache, young, old)

static int check_text(PyObject *text) {
    REFUSE(!PyUnicode_CheckExact(text), PyExc_TypeError, "a text is a str, not %.80s",
           Py_TYPE(text)->tp_name);
    return 0;
}

PyObject *text_cache_get(TextCache *self, PyObject *text) {
    PyObject *ids = PyDict_GetItemWithError(self->young, text);
    if (ids != NULL) {
        self->hits++;
        return Py_NewRef(ids);
    }
    if (PyErr_Occurred() || (ids = PyDict_GetItemWithError(self->old, text)) == NULL) {
        self->misses += !PyErr_Occurred();
        return NULL;
    }
    Py_INCREF(ids);
    if (text_cache_put(self, text, ids) < 0) {
        Py_DECREF(ids);
        return NULL;
    }
    self->hits++;
    return ids;
}

int text_cache_put(TextCache *self, PyObject *text, PyObject *ids) {
    PyObject *measured = PyObject_CallOneArg(getsizeof_function, text);
    Py_ssize_t size = measured == NULL ? -1 : PyLong_AsSsize_t(measured);
    Py_XDECREF(measured);
    TRY(size);
    size += PyBytes_GET_SIZE(ids) + ENTRY_OVERHEAD;
    int known = size > self->half / 2 ? 1 : PyDict_Contains(self->young, text);
    if (known) {
        return known < 0 ? -1 : 0;
    }
    if (self->young_size + size > self->half) {
        PyObject *fresh = PyDict_New();
        NEED(fresh);
        PyObject *dropped = self->old;
        self->old = self->young;
        self->old_size = self->young_size;
        self->young = fresh;
        self->young_size = 0;
        Py_DECREF(dropped);
    }
    TRY(PyDict_SetItem(self->young, text, ids));
    self->young_size += size;
    return 0;
}

static PyObject *cache_get(TextCache *self, PyObject *text) {
    TRY_OR_NULL(check_text(text));
    PyObject *ids = text_cache_get(self, text);
    if (ids == NULL && !PyErr_Occurred()) {
        Py_RETURN_NONE;
    }
    return ids;
}

/* find(texts) -> what is kept of each, None for nothing */
static PyObject *cache_find(TextCache *self, PyObject *texts) {
    REFUSE_OR_NULL(!PyList_CheckExact(texts), PyExc_TypeError, "texts are a list, not %.80s",
                   Py_TYPE(texts)->tp_name);
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found != NULL && i < PyList_GET_SIZE(texts); i++) {
        PyObject *text = Py_NewRef(PyList_GET_ITEM(texts, i));
        PyObject *ids = cache_get(self, text);
        append_made(&found, ids);
        Py_DECREF(text);
    }
    return found;
}

static PyObject *cache_put(TextCache *self, ARGUMENTS) {
    PyObject *text, *ids;
    TRY_OR_NULL(READ_PLACED("put", "OS", "text ids", &text, &ids));
    TRY_OR_NULL(check_text(text));
    return none_or_null(text_cache_put(self, text, ids));
}

RETURNS(TextCache, cache_figures,
        Py_BuildValue("LLnnn", self->hits, self->misses,
                      PyDict_GET_SIZE(self->young) + PyDict_GET_SIZE(self->old),
                      self->young_size + self->old_size, 2 * self->half))

METHODS(cache_methods,
    METHOD_O("get", cache_get),
    METHOD_O("find", cache_find),
    METHOD_FASTCALL("put", cache_put),
    METHOD_NOARGS("figures", cache_figures))

PyTypeObject text_cache_type = {
    TYPE("TextCache", TextCache, cache),
    .tp_methods = cache_methods,
};
