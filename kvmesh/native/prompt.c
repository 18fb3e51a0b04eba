/* A prompt hashed by Python, see prompt.h. */
#include "prompt.h"

static PyObject *upto_name; /* the name of the method asked for hashes */

int prompt_ready(void) {
    upto_name = PyUnicode_InternFromString("upto");
    return upto_name == NULL ? -1 : 0;
}

void prompt_close(AskedPrompt *self) {
    if (self->view.obj != NULL) {
        PyBuffer_Release(&self->view);
    }
    self->prompt.known = NULL;
    self->prompt.count = 0;
}

/* Let the prompt be hashed up to so many blocks. -1 with an error set. */
static int ask(Prompt *prompt, Py_ssize_t wanted) {
    AskedPrompt *self = (AskedPrompt *)prompt;
    prompt_close(self);
    PyObject *count = PyLong_FromSsize_t(wanted);
    PyObject *blocks =
        count == NULL ? NULL : PyObject_CallMethodOneArg(self->hashes, upto_name, count);
    Py_XDECREF(count);
    if (blocks == NULL) {
        return -1;
    }
    int failed = PyObject_GetBuffer(blocks, &self->view, PyBUF_FORMAT | PyBUF_ND) < 0;
    Py_DECREF(blocks);
    if (failed) {
        return -1;
    }
    const char *format = self->view.format;
    if (self->view.itemsize != sizeof *prompt->known || format == NULL ||
        (strcmp(format, "Q") != 0 && strcmp(format, "L") != 0)) {
        PyErr_SetString(PyExc_TypeError, "hashes are an array of u64s");
        return -1;
    }
    prompt->known = self->view.buf;
    prompt->count = self->view.len / (Py_ssize_t)sizeof *prompt->known;
    return 0;
}

void prompt_open(AskedPrompt *self, PyObject *hashes) {
    *self = (AskedPrompt){.prompt = {NULL, 0, ask}, .hashes = hashes};
}
