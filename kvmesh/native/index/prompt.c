/* A prompt hashed by Python, see prompt.h. */
#include "base/names.h"
#include "index/prompt.h"

#define TOKEN_BYTES 4

static void let_hashes_go(AskedPrompt *self) {
    if (self->view.obj != NULL) {
        PyBuffer_Release(&self->view);
    }
    self->prompt.known = NULL;
    self->prompt.count = 0;
}

void prompt_close(AskedPrompt *self) {
    let_hashes_go(self);
    if (self->ids.obj != NULL) {
        PyBuffer_Release(&self->ids);
    }
    self->prompt.ids = NULL;
}

/* Return an attribute, None where there is no such one; NULL with an error set. */
static PyObject *attribute(PyObject *object, PyObject *name) {
    PyObject *found = PyObject_GetAttr(object, name);
    if (found == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        return Py_NewRef(Py_None);
    }
    return found;
}

/* Return the block size, 0 for none, -1 with an error set. */
static Py_ssize_t read_size(PyObject *hashes) {
    PyObject *size = attribute(hashes, interned.block_size);
    Py_ssize_t number = size == NULL ? -1 : size == Py_None ? 0 : PyLong_AsSsize_t(size);
    Py_XDECREF(size);
    if (number < 0 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "a block of fewer than 0 tokens");
    }
    return number < 0 ? -1 : number < INT32_MAX ? number : 0;
}

int prompt_ask_ids(AskedPrompt *self) {
    PyObject *ids = attribute(self->hashes, interned.ids);
    Py_ssize_t size = ids == NULL ? -1 : ids == Py_None ? 0 : read_size(self->hashes);
    int failed = size < 0;
    if (size > 0) {
        failed = PyObject_GetBuffer(ids, &self->ids, PyBUF_SIMPLE) < 0;
    }
    if (size > 0 && !failed) {
        self->prompt.ids = self->ids.buf;
        self->prompt.id_count = self->ids.len / TOKEN_BYTES;
        self->prompt.block_size = size;
    }
    Py_XDECREF(ids);
    return failed ? -1 : 0;
}

/* Let the prompt be hashed up to so many blocks. -1 with an error set. */
static int ask(Prompt *prompt, Py_ssize_t wanted) {
    AskedPrompt *self = (AskedPrompt *)prompt;
    let_hashes_go(self);
    PyObject *count = PyLong_FromSsize_t(wanted);
    PyObject *blocks =
        count == NULL ? NULL : PyObject_CallMethodOneArg(self->hashes, interned.upto, count);
    Py_XDECREF(count);
    NEED(blocks);
    int failed = PyObject_GetBuffer(blocks, &self->view, PyBUF_FORMAT | PyBUF_ND) < 0;
    Py_DECREF(blocks);
    if (failed) {
        return -1;
    }
    const char *format = self->view.format;
    if (self->view.itemsize != sizeof *prompt->known || format == NULL ||
        (strcmp(format, "Q") != 0 && strcmp(format, "L") != 0)) {
        return set_error(PyExc_TypeError, "hashes are an array of u64s");
    }
    prompt->known = self->view.buf;
    prompt->count = self->view.len / (Py_ssize_t)sizeof *prompt->known;
    return 0;
}

void prompt_open(AskedPrompt *self, PyObject *hashes) {
    self->prompt = (Prompt){.more = ask};
    self->hashes = hashes;
    self->view.obj = self->ids.obj = NULL;
}
