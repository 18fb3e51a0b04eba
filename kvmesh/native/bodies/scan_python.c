/* The scan of a body as Python sees it. */
#include "base/shell.h"
#include "bodies/json_text.h"
#include "bodies/scan.h"

/* Return the text of a string with escapes, or NULL with an error set. */
static PyObject *unescape(const ScanText *text) {
    uint8_t *room = PyMem_Malloc((size_t)text->size + 4), *out = room;
    NEED_MEMORY_OR_NULL(room);
    const uint8_t *at = text->at, *end = text->at + text->size;
    while (at < end) {
        const uint8_t *escape = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((escape == NULL ? end : escape) - at);
        memcpy(out, at, plain);
        out += plain;
        at += plain;
        if (escape != NULL) {
            uint32_t codepoint;
            at = json_escape(at + 1, &codepoint);
            out += json_utf8(codepoint, out);
        }
    }
    PyObject *made = PyUnicode_DecodeUTF8((const char *)room, out - room, NULL);
    PyMem_Free(room);
    return made;
}

PyObject *scan_text(const ScanText *text) {
    if (text->escaped) {
        return unescape(text);
    }
    if (text->ascii) {
        PyObject *made = PyUnicode_New(text->size, 127);
        if (made != NULL && text->size) {
            memcpy(PyUnicode_1BYTE_DATA(made), text->at, (size_t)text->size);
        }
        return made;
    }
    return PyUnicode_DecodeUTF8((const char *)text->at, text->size, NULL);
}

/* Read the string whose quote is at `*at`, and step behind it. */
static PyObject *text_at(const uint8_t **at, const uint8_t *end) {
    int found = 0;
    const uint8_t *start = *at + 1, *close = json_string(start, end, &found);
    ScanText text = {start, close - start, (found & JSON_ESCAPE) != 0, !(found & JSON_WIDE)};
    *at = close + 1;
    return scan_text(&text);
}

static PyObject *read_message(const uint8_t **at, const uint8_t *end) {
    JsonWalk walk = json_walk(*at + 1, end);
    PyObject *role = NULL, *content = NULL;
    int found = 0;
    while (json_member(&walk, &found) > 0) {
        PyObject **place = JSON_KEY_IS(&walk, "role") ? &role : &content;
        *place = text_at(&walk.at, end);
        if (*place == NULL) {
            XDECREF_ALL(role, content);
            return NULL;
        }
    }
    *at = walk.at;
    PyObject *pair = PyTuple_New(2);
    if (pair == NULL) {
        Py_DECREF(role);
        Py_DECREF(content);
        return NULL;
    }
    PyTuple_SET_ITEM(pair, 0, role);
    PyTuple_SET_ITEM(pair, 1, content);
    return pair;
}

PyObject *scan_messages(const Scan *scan) {
    PyObject *list = PyList_New(scan->message_count);
    JsonWalk walk = json_walk(scan->messages.at + 1, scan->body + scan->size);
    for (Py_ssize_t i = 0; list != NULL && json_item(&walk) > 0; i++) {
        PyObject *message = read_message(&walk.at, walk.end);
        set_made(&list, i, message);
    }
    return list;
}

/* scan_tokens(body) -> the byte tokenizer's ids of a chat or else a prompt | None */
static PyObject *native_scan_tokens(PyObject *Py_UNUSED(module), PyObject *body) {
    Py_buffer view;
    Scan scan;
    ScanTokens tokens = {NULL, 0, 0};
    TRY_OR_NULL(PyObject_GetBuffer(body, &view, PyBUF_SIMPLE));
    int done = !scan_body(view.buf, view.len, &scan) ? 0
               : scan.messages.at == NULL            ? scan_prompt_tokens(&scan, &tokens)
                                                     : scan_chat_tokens(&scan, &tokens);
    PyObject *made = done < 0 ? PyErr_NoMemory() : done == 0 ? Py_NewRef(Py_None)
        : PyBytes_FromStringAndSize((const char *)tokens.ids, tokens.count * 4);
    scan_release(&tokens);
    PyBuffer_Release(&view);
    return made;
}

PyMethodDef native_scan_methods[] = {
    METHOD_O("scan_tokens", native_scan_tokens),
    {NULL, NULL, 0, NULL},
};
